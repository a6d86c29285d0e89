"""The GPU that a run uses, as far as its memory matters. It is found (``runtime/gpus``), or named, so that a run can be
planned before there is a machine for it:

8xH100      eight cards of a known kind
80GiB       one card with this much memory
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tailrace.sizing.parts import CONTEXT_BYTES

GIB_OF = {
    "A100-40GB": 39,
    "A100-80GB": 79,
    "B200": 178,
    "H100": 79,
    "H200": 139,
    "L40S": 44,
    "RTX4090": 23,
}
"""Whole GiB that torch finds on such a card; a little less than the vendor's GB."""
_FORM = re.compile(r"(?:(?P<count>[1-9]\d*)x)?(?P<kind>\S+)")
_SIZE = re.compile(r"(?P<gib>[1-9]\d*)GiB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    name: str
    total: int
    """Bytes of the card's memory."""
    free: int
    """Bytes that no process used when the question was answered; the asking process counts as one."""
    count: int = 1
    """Cards like this one over which rollout and training are spread."""

    @property
    def available(self) -> int:
        """Bytes that a run can use, in whole GiB: small differences between two looks do not change the answer."""
        return min(self.total, self.free + CONTEXT_BYTES) // 2**30 * 2**30

    @property
    def title(self) -> str:
        """The name, and how many there are."""
        return self.name if self.count == 1 else f"{self.count} x {self.name}"


def parse_card(text: str) -> Card:
    """``ValueError`` if the text names no card."""
    form = _FORM.fullmatch(text)
    kind = form["kind"] if form else text
    size = _SIZE.fullmatch(kind)
    gib = int(size["gib"]) if size else {name.lower(): gib for name, gib in GIB_OF.items()}.get(kind.lower())
    if form is None or gib is None:
        names = ", ".join(GIB_OF)
        raise ValueError(f"unknown card {text!r}: write {names}, or a size such as 80GiB; 8xH100 means eight of them")
    return Card(name=kind, total=gib * 2**30, free=gib * 2**30, count=int(form["count"] or 1))
