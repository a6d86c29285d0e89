"""What keeps a run from beginning, and does not keep one that has begun from being continued."""

from __future__ import annotations

from typing import NamedTuple


class Objection(NamedTuple):
    problem: str
    remedy: str

    @property
    def refusal(self) -> str:
        return f"{self.problem}; {self.remedy}"

    @property
    def warning(self) -> str:
        """The line for a run that is continued. The remedy is left out: a begun run keeps its settings."""
        return f"warning: {self.problem}; a new run would be refused"
