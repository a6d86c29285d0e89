"""Time limits of test cases, as the core has said them last."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.core.commands import CaseLimits
from tailrace.core.ids import ResponseId


class NewestLimits:
    """Owns the limits of the responses whose tests have been requested and are not back. Use it from one event loop."""

    def __init__(self) -> None:
        self._limits: dict[ResponseId, CaseLimits] = {}

    def note(self, response: ResponseId, limits: CaseLimits) -> None:
        self._limits[response] = limits

    def change(self, responses: Iterable[ResponseId], limits: CaseLimits) -> None:
        """Responses that are back meanwhile have no limits any more."""
        self._limits.update((response, limits) for response in responses if response in self._limits)

    def of(self, response: ResponseId) -> CaseLimits | None:
        return self._limits.get(response)

    def forget(self, response: ResponseId) -> None:
        self._limits.pop(response, None)
