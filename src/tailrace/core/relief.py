"""When training has waited long enough for the slowest groups of a strict batch, the batch goes on without them.

Where nothing is ever given up, one response that never ends would hold up everything for ever. ``max_stuck_s`` is how
long that may last while the trainer is free; then the groups it waits for begin again from their prompts or are
dropped, and others take their places. If that happens again and again without a batch in between, the limit is shorter
than what responses take, and the run ends with a sentence that says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.core import commands as do
from tailrace.core.groups import Group, GroupPhase
from tailrace.core.ledger import BatchState
from tailrace.core.moves import begin_again, drop, let_go
from tailrace.core.policy import Policies
from tailrace.core.schedule import OnStuck, Schedule
from tailrace.core.state import State


def relieve(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    if schedule.max_stuck_s is None:
        return
    if not _is_training_held_up(state):
        state.stuck_since = None
        return
    if state.stuck_since is None:
        state.stuck_since = now
    if now < state.stuck_since + schedule.max_stuck_s:
        return
    state.stuck_since = None
    state.num_reliefs_in_a_row += 1
    late, restarts = state.ledger.awaited(), schedule.on_stuck is OnStuck.RESTART
    for group in [state.groups[number] for number in late]:
        yield from _restart(state, schedule, group) if restarts else give_up(state, group, now)
    if restarts:
        yield do.LeaveOut(restarted=tuple(sorted(late)))


def _is_training_held_up(state: State) -> bool:
    """Whether nothing but unfinished groups keeps the trainer from its next step."""
    is_free = state.is_trainer_ready and not state.batches and state.eval_done == state.version
    return is_free and state.ledger.state is BatchState.STUCK


def give_up(state: State, group: Group, now: float) -> Iterator[do.Command]:
    """A group that has no place within the bound any more leaves for good."""
    drop(state, group, GroupPhase.DROPPED, now)
    state.left_out[group.id] = GroupPhase.DROPPED
    yield from let_go(state, group.members.values())


def _restart(state: State, schedule: Schedule, group: Group) -> Iterator[do.Command]:
    """A group begins again from its prompt, as one that was never given to an instance."""
    state.ledger.delete(group.id)
    yield from let_go(state, group.clear())
    begin_again(state, schedule, group)
