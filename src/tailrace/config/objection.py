"""What keeps a run from beginning. A run that has begun with it is continued."""

from __future__ import annotations

from typing import NamedTuple


class Objection(NamedTuple):
    problem: str
    remedy: str
    evaluation_sets: frozenset[str] = frozenset()
    """Names of the evaluation sets that it is about. If one of them was changed, the run is not continued either."""

    @property
    def refusal(self) -> str:
        return f"{self.problem}; {self.remedy}"

    @property
    def warning(self) -> str:
        """The line for a run that is continued. The remedy is left out: a begun run keeps its settings."""
        return f"warning: {self.problem}; a new run would be refused"
