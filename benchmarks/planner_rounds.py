"""What each round of a journal took, and how often its responses were preempted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import InstanceId
from tailrace.core.journal import Entry


@dataclass(slots=True, kw_only=True)
class RoundFacts:
    is_long: bool
    size: int
    """Parallel size; 0: the schedule knows none."""
    num_launched: int
    """Responses that it was to launch."""
    opened_at: float
    """For the first round when it began: the start of the run does not count."""
    began_at: float | None = None
    """When it submitted its first response: after changes of the size and pulls."""
    closed_at: float | None = None
    num_preemptions: int = 0

    @property
    def seconds(self) -> float:
        """Seconds from its opening to its end, a change of the size included."""
        assert self.closed_at is not None
        return self.closed_at - self.opened_at

    @property
    def rollout_s(self) -> float:
        """Seconds from its first response to its end."""
        assert self.closed_at is not None
        assert self.began_at is not None
        return self.closed_at - self.began_at


@dataclass(slots=True)
class RoundRecorder:
    """Feed it the entries of a journal."""

    rounds: list[RoundFacts] = field(default_factory=list)
    _seen: dict[InstanceId, int] = field(default_factory=dict)
    """Preemptions that each process had reported."""

    def feed(self, entry: Entry) -> None:
        match entry.event:
            case ev.RolloutReported(instance=number, num_preemptions=total):
                if self.rounds:
                    self.rounds[-1].num_preemptions += max(0, total - self._seen.get(number, 0))
                self._seen[number] = total
            case ev.InstanceLost(instance=number) | ev.InstanceStopped(instance=number):
                self._seen.pop(number, None)
        for command in entry.commands:
            self._note(command, entry.now)

    def _note(self, command: do.Command, now: float) -> None:
        match command:
            case do.OpenRound():
                self.rounds.append(
                    RoundFacts(
                        is_long=command.is_long,
                        size=command.parallel_size,
                        num_launched=command.num_prompts * command.num_responses,
                        opened_at=now,
                    )
                )
            case do.Submit() if self.rounds and self.rounds[-1].began_at is None:
                self.rounds[-1].began_at = now
                if len(self.rounds) == 1:
                    self.rounds[0].opened_at = now
            case do.CloseRound():
                self.rounds[-1].closed_at = now


def changes(rounds: Sequence[RoundFacts], *, is_long: bool) -> list[str]:
    """Return at which steps, counted from 1, the rounds of a kind got another size: "8: 2" is size 2 from step 8."""
    found, last = [], None
    for step, each in enumerate(rounds, start=1):
        if each.is_long is is_long:
            if last is not None and each.size != last:
                found.append(f"{step}: {each.size}")
            last = each.size
    return found
