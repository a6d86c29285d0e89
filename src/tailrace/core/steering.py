"""Which instances pull and which give work away: the rules that ask the other two strategies, and the pace of plans.

With rounds an idle instance pulls whatever is published. Without them nothing ever ends by itself: the synchronization
policy *calls* an instance, which then stops, reports every token, pulls, and takes work again.

    plan:  open_plan --> synchronize --> migrate --> dispatch --> close_plan            after something happened

Vanilla strategies cost little and are asked at every event. The others wait after a plan for as long as one of its
size may take many times over; while every instance has work, longer: then little is lost by it. A plan that is not due
yet sets a timer; while nothing happens there is none.
"""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.core import commands as do
from tailrace.core.coordination import Strategy
from tailrace.core.fleet import Instance, InstancePhase
from tailrace.core.policy import Policies
from tailrace.core.schedule import Schedule
from tailrace.core.state import State
from tailrace.core.views import claims, fleet_view

_RESPONSE_S = 5e-6
"""Of a plan, for each response that runs or waits, at most (``benchmarks/planning.py``)."""
_MAX_SHARE = 0.1
"""Of the time that plans may take."""
_CALM_S = 0.1
"""Least seconds between two plans while every instance has work."""


def open_plan(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    """The first of a plan: when is it due? Asked once, for what a plan does may change the answer."""
    if schedule.coordination.plans:
        state.plan_at = now if state.planned_at is None else state.planned_at + _wait_s(state, schedule)
    yield from ()


def is_planning(state: State, schedule: Schedule, strategy: Strategy, now: float) -> bool:
    """Whether a strategy is asked now."""
    if strategy is Strategy.VANILLA:
        return True
    if state.plan_at is None or now < state.plan_at:
        return False
    return not schedule.coordination.is_global or all(i.owes_nothing for i in state.instances.values())


def _wait_s(state: State, schedule: Schedule) -> float:
    """Least seconds from the last plan to the next."""
    if (given_s := schedule.coordination.plan_interval_s) is not None:
        return given_s
    paid_s = state.num_planned * _RESPONSE_S / _MAX_SHARE
    # Whether somebody waits is asked at every event, and looks at all that waits: not where it would change nothing.
    return paid_s if paid_s >= _CALM_S or _is_plan_awaited(state, schedule) else _CALM_S


def _is_plan_awaited(state: State, schedule: Schedule) -> bool:
    """Whether an instance has nothing to do until there is a plan. After one there is none: an idle instance that is
    behind pulls, and whatever may go to another is routed."""
    idle = {instance.version for instance in state.instances.values() if instance.is_idle}
    if not idle or min(idle) < state.published:
        return bool(idle)
    if not state.pending:
        return False
    waiting = claims(state, schedule)
    return any(waiting.lets_in(version, may_begin=state.ledger.can_reserve(version)) for version in idle)


def synchronize(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    if schedule.has_rounds or not is_planning(state, schedule, schedule.coordination.synchronization, now):
        return
    if not any(i.accepts_work and i.version < state.published for i in state.instances.values()):
        return
    for number in tuple(policies.synchronization.choose(fleet_view(state, schedule, now))):
        instance = state.instances[number]
        instance.is_called = True
        yield from _interrupt(instance, len(instance.running))


def pull(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    published, released = state.published, InstancePhase.RELEASED
    for instance in [i for i in state.instances.values() if i.version < published or i.phase is released]:
        is_free = instance.owes_nothing and not instance.running and (instance.is_called or schedule.has_rounds)
        if is_free or (instance.phase is released and _is_room_free(state)):
            instance.move(InstancePhase.PULLING, now=now)
            yield do.PullWeights(instance=instance.id, version=published)


def _is_room_free(state: State) -> bool:
    """Whether training is over for now, so that rollout may have its memory again."""
    return not state.batches and state.published == state.version


def migrate(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    strategy = schedule.coordination.migration
    if strategy is Strategy.VANILLA or not is_planning(state, schedule, strategy, now):
        return
    for number, count in tuple(policies.migration.choose(fleet_view(state, schedule, now))):
        instance = state.instances[number]
        instance.moved_at = now
        yield from _interrupt(instance, count)


def _interrupt(instance: Instance, count: int) -> Iterator[do.Command]:
    """Stop the youngest ``count`` of its responses."""
    stopping = list(instance.running)[len(instance.running) - count :]
    if stopping:
        instance.stopping = dict.fromkeys(stopping)
        yield do.Interrupt(instance=instance.id, trajectories=tuple(stopping))


def close_plan(state: State, schedule: Schedule, policies: Policies, now: float) -> Iterator[do.Command]:
    """The last of a plan: take note that it was made, or when it will be."""
    if not schedule.coordination.plans:
        return
    if state.plan_at is not None and now < state.plan_at:
        if not state.pending and schedule.coordination.migration is not Strategy.THROUGHPUT:
            state.plan_at = None  # nothing to plan for
    elif is_planning(state, schedule, Strategy.THROUGHPUT, now):
        state.planned_at, state.plan_at = now, None
        state.num_planned = sum(state.pending.values()) + sum(len(i.running) for i in state.instances.values())
    else:
        state.plan_at = None  # an answer that is owed will come as an event
    yield from ()
