"""The rewards room: which finished responses need a score, and which scores have been requested."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tailrace.core import commands as do
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.outcomes import Part
from tailrace.core.responses.response import Response
from tailrace.core.rewards.case_times import CaseTimes
from tailrace.core.run.waits import Wait
from tailrace.core.schedule import Limits, Schedule

MIN_FAILURES = 32
"""The run fails after this many failed rewards in a row. Fewer may be chance."""


_NAMES = {Part.FUNCTION: "reward", Part.TESTS: "test results", Part.JUDGE: "score by the judge"}


@dataclass(slots=True, kw_only=True)
class Requested:
    """What was requested of one part of the scores."""

    scoring: dict[ResponseId, None] = field(default_factory=dict)
    """Responses for which this part has been requested."""
    aborting: dict[ResponseId, None] = field(default_factory=dict)
    """Responses for which it was aborted; the adapter has not confirmed it yet."""
    heard_at: float = 0.0
    """When the last of them arrived, or was requested while no other was awaited."""

    def request(self, responses: Iterable[ResponseId], now: float) -> None:
        if not self.scoring:
            self.heard_at = now
        self.scoring.update(dict.fromkeys(responses))

    def abort(self, responses: Iterable[ResponseId]) -> tuple[ResponseId, ...]:
        """Abort this part of the responses for which it is awaited, and return those."""
        aborted = tuple(response for response in responses if response in self.scoring)
        for each in aborted:
            del self.scoring[each]
        self.aborting.update(dict.fromkeys(aborted))
        return aborted


@dataclass(slots=True, kw_only=True)
class Rewards:
    """State of the rewards room."""

    generated: dict[ResponseId, None] = field(default_factory=dict)
    """Finished responses whose reward has not been requested."""
    requested: dict[Part, Requested] = field(default_factory=dict)
    """What was requested, by part."""
    num_failed_in_a_row: int = 0
    """Failed rewards of training responses since the last successful one."""
    last_failure: str = ""
    case_times: dict[str, CaseTimes] = field(default_factory=dict)
    """Problems that were solved, and how long their test cases took."""
    relimited: dict[GroupId, None] = field(default_factory=dict)
    """Groups of problems whose limits have changed since responses that are awaited were requested."""

    @staticmethod
    def upgraded(stored: dict[str, object]) -> dict[str, object]:
        """Return the stored fields with the names of this release. Scores had one part before."""
        former = {name: stored[name] for name in ("scoring", "aborting", "heard_at") if name in stored}
        rest = {name: value for name, value in stored.items() if name not in former}
        return rest | {"requested": {Part.FUNCTION.value: former}} if former else rest

    # Notices

    def add(self, response: ResponseId) -> None:
        """Note that a response is finished and needs a score."""
        self.generated[response] = None

    def forget_case_times(self) -> None:
        """Note that shorter times of test cases matter from now on. Nobody has told those of the problems that were
        solved, so each has to be solved again before its cases have limits of their own."""
        self.case_times.clear()
        self.relimited.clear()

    def remove_generated(self, response: ResponseId) -> None:
        """Note that a finished response was aborted before its reward was requested."""
        del self.generated[response]

    def abort(self, responses: Iterable[Response]) -> Iterator[do.Command]:
        """Abort these rewards."""
        ids = [response.id for response in responses]
        for part, requested in self.requested.items():
            if aborted := requested.abort(ids):
                yield do.AbortScores(responses=aborted, part=part)

    # Questions

    def awaits(self, response: ResponseId) -> bool:
        """Whether some part of its score is awaited."""
        return any(response in requested.scoring for requested in self.requested.values())

    def failure(self, schedule: Schedule) -> str | None:
        """Return why the run must fail; None if it can continue."""
        count = self.num_failed_in_a_row
        if count < max(MIN_FAILURES, 2 * schedule.batch_size * schedule.group_size):
            return None
        return f"the last {count} rewards failed, every one of them; {self.last_failure}"

    @property
    def failure_detail(self) -> str:
        """Sentence that says how the last failed reward failed."""
        return self.last_failure

    def waits(self, limits: Limits) -> Iterator[Wait]:
        for part, requested in self.requested.items():
            if scoring := requested.scoring:
                more = f" and {len(scoring) - 1} more" if len(scoring) > 1 else ""
                what = f"{_NAMES[part]} of {next(iter(scoring))}{more}"
                yield Wait(what=what, since=requested.heard_at, limit_s=limits.part_s(part))
