"""Rounds: what one step collects its batch from. Questions only; the rules act on the answers.

Without over-provisioning every round is short and launches exactly a batch. With `defer`, a short round launches more
than it trains and what is left over waits in the long queue; as soon as the queue holds a batch, the next round is
long: it takes the oldest prompts of the queue and launches nothing in excess.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tailrace.core.groups import Group, GroupPhase
from tailrace.core.ids import GroupId, Version
from tailrace.core.schedule import EpochEnd, Leftovers, Schedule

if TYPE_CHECKING:
    from tailrace.core.state import State


@dataclass(slots=True, kw_only=True)
class Round:
    """A round fills the batch of the step with its number."""

    number: int
    is_long: bool
    version: Version
    """The oldest version that may generate for it."""
    size: int
    """Groups it launches."""
    num_members: int
    """Responses each of them begins with."""
    batch_size: int
    """Groups it ends with."""
    began_at: float | None = None
    """When the first of them was given to an instance."""
    given_up: dict[GroupId, str] = field(default_factory=dict)
    """Complete groups (with their domains) that a quota left over: they were launched and are not replaced."""


def next_round(state: State, schedule: Schedule) -> Round | None:
    """The round that may begin now."""
    number = state.ledger.current
    if number >= schedule.max_steps or state.published < number - schedule.rounds_ahead:
        return None
    if schedule.train_source in state.prompts:
        return None  # they were to replace groups of the last round: this one begins with them
    size, num_members = state.search.launch(schedule)
    is_long, batch_size = len(state.queue) >= schedule.batch_size, schedule.batch_size
    if not is_long and (remainder := _remainder(state, schedule, size)) is not None:
        is_long, batch_size = True, min(remainder, batch_size)
    return Round(
        number=number,
        is_long=is_long,
        version=state.published,
        size=batch_size if is_long else size,
        num_members=schedule.group_size if is_long else num_members,
        batch_size=batch_size,
    )


def _remainder(state: State, schedule: Schedule, size: int) -> int | None:
    """Prompts that a pass over the data still has to train before it ends, where they must not be carried on."""
    if schedule.epoch_end is EpochEnd.CARRY or not schedule.epoch_size:
        return None
    epoch, offset = state.cursor
    fresh = schedule.epoch_size - offset
    if state.queue and next(iter(state.queue)).epoch < epoch:
        return len(state.queue)
    return len(state.queue) + fresh if fresh < size else None


def num_members(schedule: Schedule, round: Round | None) -> int:
    """Responses a group begins with."""
    return schedule.num_members if round is None else round.num_members


def num_missing(state: State, schedule: Schedule) -> int:
    """Groups that should be in progress and are not."""
    if state.round is not None:
        return state.round.size - len(state.round.given_up) - state.num_train_groups
    if schedule.leftovers is not Leftovers.KEEP:
        return 0
    still_needed = (schedule.max_steps - state.ledger.current) * schedule.batch_size
    limit = state.ledger.rules.max_entries or 0
    return min(still_needed, limit - _num_not_replaced(state, schedule)) - state.num_train_groups


def _num_not_replaced(state: State, schedule: Schedule) -> int:
    """Groups that left the ledger and still count where only the number in flight is bounded: those that are trained
    now, and those that were trained into a version nobody can pull yet. What took their place sooner would begin with
    the version before it. By deadline the ledger knows better."""
    if schedule.is_strict:
        return 0
    return sum(len(batch) for batch in state.batches) + schedule.batch_size * (state.version - state.published)


def unfinished_visits(state: State, schedule: Schedule) -> set[int]:
    """Prompts that must not come again yet: a deferred prompt is trained before its next visit begins."""
    if schedule.leftovers is not Leftovers.DEFER:
        return set()
    return {group.prompt for group in state.groups if group.source == schedule.train_source}


def is_wanted(state: State, schedule: Schedule, group: Group) -> bool:
    """Whether a complete group may join the batch: short rounds take each domain in proportion to its launch."""
    round = state.round
    if not schedule.has_quotas or round is None or round.is_long:
        return True
    phases = (GroupPhase.OPEN, GroupPhase.COMPLETE)
    live = [g for g in state.groups.values() if g.id.source == schedule.train_source and g.phase in phases]
    accepted = Counter(g.domain for g in live if g.id in state.complete)
    waiting = Counter(g.domain for g in live if g.id not in state.complete)
    quotas = shares(accepted + waiting + Counter(round.given_up.values()), round.batch_size)
    if accepted[group.domain] < quotas[group.domain]:
        return True
    others = sum(count for domain, count in waiting.items() if accepted[domain] < quotas[domain])
    return others < round.batch_size - accepted.total()


def shares(launched: Counter[str], total: int) -> dict[str, int]:
    """``total`` divided in proportion, by largest remainder; never more of a domain than was launched."""
    exact = {domain: total * count / launched.total() for domain, count in launched.items()}
    result = {domain: int(value) for domain, value in exact.items()}
    by_need = sorted(exact, key=lambda domain: (result[domain] - exact[domain], domain))
    for domain in by_need[: total - sum(result.values())]:
        result[domain] += 1
    return result
