"""Random fleets for policies to look at, as the core could show them."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from policies.fleets import begun, instance, new, view
from tailrace.core.fleet.policy import FleetView, InstanceView, WaitingGroup
from tailrace.core.ids import InstanceId, Version
from tailrace.core.schedule import Coordination, Leftovers, Schedule

PUBLISHED = 4


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """A schedule with which every strategy can work, and any numbers for the strategies."""
    return Schedule(
        train_source="train",
        batch_size=2,
        group_size=2,
        max_steps=3,
        leftovers=Leftovers.KEEP,
        max_staleness=2,
        num_instances=draw(st.integers(1, 4)),
        coordination=Coordination(
            kv_tokens=draw(st.sampled_from([0, 30, 400])),
            max_running=draw(st.sampled_from([0, 1, 4])),
            prompt_length=draw(st.sampled_from([0, 10])),
            min_gain=draw(st.sampled_from([0.1, 0.3, 1.0])),
            max_waiting=draw(st.integers(0, 3)),
            max_gap=draw(st.sampled_from([1.0, 5.0])),
        ),
    )


@st.composite
def fleets(draw: st.DrawFn, *, has_homes: bool = False, is_idle: bool = False) -> FleetView:
    """``has_homes``: routing asks where responses were; ``is_idle``: no instance has a response, and all have room."""
    rng = draw(st.randoms(use_true_random=False))
    instances = [_instance(rng, number, is_idle) for number in range(rng.randint(0 if not is_idle else 1, 5))]
    running = {each.instance: _running(rng, each) for each in instances}
    limits = rng.choice([{}, {"free": rng.randint(0, 3)}, {"current": rng.randint(PUBLISHED, PUBLISHED + 3)}])
    queue = [_at_home(rng, group) if has_homes else group for group in _queue(rng)]
    return view(instances, queue, published=PUBLISHED, newest=PUBLISHED, running=running, **limits)


def _instance(rng: random.Random, number: int, is_idle: bool) -> InstanceView:
    responses = 0 if is_idle else rng.randint(0, 9)
    return instance(
        number,
        version=rng.randint(0, PUBLISHED),
        responses=responses,
        capacity=max(1, rng.randint(responses - 1, responses + 5)),
        num_waiting=rng.choice([0, rng.randint(0, max(0, responses - 1))]),
        kv=10.0 * responses,
        is_rested=rng.random() < 0.8,
    )


def _running(rng: random.Random, holder: InstanceView) -> list[WaitingGroup]:
    """Each response of an instance as a group of its own, as the core shows them."""
    groups = [(rng.randint(0, holder.version), 1000 * (holder.instance + 1) + i) for i in range(holder.num_responses)]
    return [begun(prompt, version=version, needs=holder.version) for version, prompt in groups]


def _queue(rng: random.Random) -> list[WaitingGroup]:
    """Evaluations, then started groups from the oldest version, then new groups."""
    sizes = {"length": rng.choice([10, 20, 300])}
    exact = [begun(i, version=PUBLISHED, exact=True) for i in range(rng.choice([0, 0, 2]))]
    versions = sorted(rng.randint(0, PUBLISHED) for _ in range(rng.randint(0, 4)))
    started = [begun(10 + i, version=v, members=rng.randint(1, 3), **sizes) for i, v in enumerate(versions)]
    started = [
        group._replace(needs=tuple(Version(rng.randint(needs, PUBLISHED)) for needs in group.needs))
        for group in started
    ]
    return [*exact, *started, *(new(20 + i, members=rng.randint(1, 3)) for i in range(rng.randint(0, 4)))]


def _at_home(rng: random.Random, group: WaitingGroup) -> WaitingGroup:
    """A started group whose members were on an instance that is there, that is not in the view, or that is gone."""
    if group.version is None or group.is_exact:
        return group
    return group._replace(homes=tuple(rng.choice([None, InstanceId(0), InstanceId(9)]) for _ in group.responses))


def takers(seen: FleetView, group: WaitingGroup) -> set[Version]:
    """Versions of instances that may take at least one member of a queued group, however loaded they are."""
    versions = {each.version for each in seen.instances}
    if group.version is None:
        return {v for v in versions if v >= seen.oldest_for_new and seen.admission.can_reserve(v)}
    if group.is_exact:
        return versions & {group.version}
    return {v for v in versions if v >= min(group.needs)}
