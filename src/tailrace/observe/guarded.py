"""Keeps the errors of an observer away from the run that it observes.

A display, metrics, a logger or a report may break; the run goes on without it. The first error of such a part switches
it off and is told once. The journal and the payload store are no observers: their errors end a run.

Tests must fail on such an error: it is raised if the environment variable ``TAILRACE_RAISE_OBSERVER_ERRORS`` is set.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")
Answer = TypeVar("Answer")
Complain = Callable[[str, Exception], None]
"""Is told the name of a part that was switched off, and its error."""

RAISE_VARIABLE = "TAILRACE_RAISE_OBSERVER_ERRORS"


class Guarded(Generic[T]):
    """An observer that is switched off by its first error."""

    def __init__(
        self, part: str, make: Callable[[], T], complain: Complain, *, leave: Callable[[T], object] | None = None
    ) -> None:
        """``make`` returns the observer; ``leave`` is called with it when it is switched off."""
        self._part, self._complain, self._leave = part, complain, leave
        self._observer: T | None = None
        self.is_on = True
        self._observer = self._attempt(make)

    def tell(self, work: Callable[[T], object]) -> None:
        """Let the observer do this, unless it is off."""
        self.ask(work)

    def ask(self, question: Callable[[T], Answer]) -> Answer | None:
        """Return what the observer answers; None if it is off."""
        observer = self._observer
        return None if observer is None else self._attempt(lambda: question(observer))

    def _attempt(self, work: Callable[[], Answer]) -> Answer | None:
        try:
            return work()
        except Exception as error:  # noqa: BLE001  whatever breaks in an observer, the run goes on
            if self.is_on:  # else another thread met the first error meanwhile
                self._switch_off()
                self._complain(self._part, error)
            return None

    def _switch_off(self) -> None:
        observer, self._observer, self.is_on = self._observer, None, False
        if observer is not None and self._leave is not None:
            with contextlib.suppress(Exception):  # it is broken; but it may still give back what it holds
                self._leave(observer)


class Complaints:
    """Tells the user what was switched off, in one line; the log has the whole error."""

    def __init__(self, log: Path, say: Callable[[str], None]) -> None:
        self._log, self._say = log, say

    def __call__(self, part: str, error: Exception) -> None:
        raise_in_tests(error)
        with contextlib.suppress(OSError), self._log.open("a", encoding="utf-8") as log:
            log.write(f"{part}: " + "".join(traceback.format_exception(error)))
        with contextlib.suppress(Exception):  # where nobody can be told any more, the log has it
            self._say(f"{part}: switched off, the run goes on ({type(error).__name__}: {error}; see {self._log})")


def raise_in_tests(error: Exception) -> None:
    """Raise the error if the environment asks for it."""
    if os.environ.get(RAISE_VARIABLE):
        raise error
