"""The rewards room: which finished responses need a score, and which scores have been requested."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tailrace.core import commands as do
from tailrace.core.ids import ResponseId
from tailrace.core.responses.response import Response
from tailrace.core.rewards.case_times import CaseTimes
from tailrace.core.run.waits import Wait
from tailrace.core.schedule import Limits, Schedule

MIN_FAILURES = 32
"""The run fails after this many failed rewards in a row. Fewer may be chance."""


@dataclass(slots=True, kw_only=True)
class Rewards:
    """State of the rewards room."""

    generated: dict[ResponseId, None] = field(default_factory=dict)
    """Finished responses whose reward has not been requested."""
    scoring: dict[ResponseId, None] = field(default_factory=dict)
    """Responses whose reward has been requested."""
    aborting: dict[ResponseId, None] = field(default_factory=dict)
    """Rewards that were aborted; the adapter has not confirmed it yet."""
    heard_at: float = 0.0
    """When the last reward arrived, or was requested while no other was awaited."""
    num_failed_in_a_row: int = 0
    """Failed rewards of training responses since the last successful one."""
    last_failure: str = ""
    case_times: dict[str, CaseTimes] = field(default_factory=dict)
    """Problems that were solved, and how long their test cases took."""

    # Notices

    def add(self, response: ResponseId) -> None:
        """Note that a response is finished and needs a score."""
        self.generated[response] = None

    def remove_generated(self, response: ResponseId) -> None:
        """Note that a finished response was aborted before its reward was requested."""
        del self.generated[response]

    def abort(self, responses: Iterable[Response]) -> Iterator[do.Command]:
        """Abort these rewards."""
        ids = tuple(response.id for response in responses)
        for each in ids:
            del self.scoring[each]
            self.aborting[each] = None
        if ids:
            yield do.AbortScores(responses=ids)

    # Questions

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
        if self.scoring:
            first = next(iter(self.scoring))
            more = f" and {len(self.scoring) - 1} more" if len(self.scoring) > 1 else ""
            yield Wait(what=f"reward of {first}{more}", since=self.heard_at, limit_s=limits.reward_s)
