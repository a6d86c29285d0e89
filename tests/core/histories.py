"""Random histories of every sound schedule, and what they say about rounds and groups.

A history is one run of the coordinator in a random world. Hypothesis draws what the world is made from, a ``Case``:
the schedule, what goes wrong, and one seed for everything inside. A history takes thousands of small decisions: drawn
one by one they cost ten times what the history does, and all but short histories overrun what Hypothesis keeps of an
example. How long a history is depends on its schedule, so one that fails shrinks to a few steps of a few groups.

``TAILRACE_HISTORIES`` multiplies the number of histories (`make histories`).
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from hypothesis import HealthCheck, Phase, reject, settings
from hypothesis import strategies as st

from core.lagging_world import LIMITS, Fault, Kind, LaggingWorld
from core.world import Sender, World, draw_costs
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.ledger.admission import AdmissionRule
from tailrace.core.outcomes import Part
from tailrace.core.schedule import (
    Coordination,
    EpochEnd,
    EvalSet,
    Leftovers,
    Lending,
    Limits,
    OnStuck,
    Placement,
    Schedule,
    SharedPlace,
    Stream,
    VersionCap,
)
from tailrace.core.schedule.soundness import sound
from tailrace.policies.strategies import KINDS, Scaling, policies_of

NUM_PROMPTS = 29
I0 = InstanceId(0)
_BASE = {
    "train_source": "train",
    "epoch_size": NUM_PROMPTS,
    "limits": Limits(max_restarts=1000),
    # Groups of one are all equal: their histories would be nothing but a thousand filtered ones.
    "max_useless_groups": 60,
}
_SCALE = float(os.environ.get("TAILRACE_HISTORIES", "1"))
_SHRINKS = os.environ.get("TAILRACE_SHRINKS", "1") == "1"
"""Whether somebody wants to see a short history, or only whether there is one that fails."""


def held_to(count: int) -> settings:
    """So many histories, the same ones every time."""
    return settings(
        max_examples=max(1, round(count * _SCALE)),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink] if _SHRINKS else [Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a history follows from."""

    schedule: Schedule
    seed: int
    trouble: float = 0.0
    lag: float = 0.0
    faults: tuple[Fault, ...] = ()

    def run(self, *, checks: bool = False) -> History:
        rng = random.Random(self.seed)
        return history(self.schedule, rng, trouble=self.trouble, checks=checks)

    def run_lagging(self, kind: type[LaggingWorld] = LaggingWorld, *, checks: bool = False) -> History:
        rng = random.Random(self.seed)
        world = kind(self.schedule, rng, num_prompts=NUM_PROMPTS, lag=self.lag, faults=self.faults, checks=checks)
        return History(schedule=self.schedule, world=world, verdict=world.run())


MakeSchedule = Callable[..., Schedule]


@st.composite
def schedules(draw: st.DrawFn, make: MakeSchedule, **changes: object) -> Schedule:
    try:
        return make(draw(st.randoms(use_true_random=False)), **changes)
    except ValueError:
        reject()  # an unsound combination


@st.composite
def cases(draw: st.DrawFn, make: MakeSchedule, *troubles: float, **changes: object) -> Case:
    """``troubles``: how much goes wrong, the simplest first."""
    schedule = draw(schedules(make, **changes))
    trouble = draw(st.sampled_from(troubles or (0.0,)))
    return Case(schedule=schedule, trouble=trouble, seed=draw(st.integers(0, 2**32)))


@st.composite
def lagging_cases(draw: st.DrawFn, make: MakeSchedule, **changes: object) -> Case:
    """Acknowledgements that come late or never, instances that are lost, crashes."""
    schedule = draw(schedules(make, limits=LIMITS, **changes))
    lag = draw(st.sampled_from([0.0, 0.2, 0.5, 0.9]))
    senders: list[Sender] = [*map(InstanceId, range(schedule.num_instances)), "trainer", "rewards", "prompts"]
    fault = st.builds(
        Fault,
        at=st.integers(1, 400),
        kind=st.sampled_from(Kind),
        sender=st.sampled_from(senders),
        seconds=st.sampled_from([1.0, 10.0, 25.0, 100.0]),
    )
    faults = draw(st.lists(fault, max_size=5))
    return Case(schedule=schedule, lag=lag, faults=tuple(faults), seed=draw(st.integers(0, 2**32)))


def _with_strategies(**chosen: str) -> Schedule:
    """A schedule that leaves the strategies free."""
    coordination = Coordination(**chosen)
    return Schedule(
        train_source="train",
        batch_size=1,
        group_size=1,
        max_steps=1,
        leftovers=Leftovers.KEEP,
        max_staleness=1,
        coordination=coordination,
    )


def _is_sound(mix: dict[str, str]) -> bool:
    try:
        policies_of(_with_strategies(**mix))
    except ValueError:
        return False
    return True


def _num_planned(mix: dict[str, str]) -> int:
    policies = policies_of(_with_strategies(**mix))
    return sum(getattr(policies, kind).is_planned for kind in KINDS)


_NAMES = product(*([strategy.value for strategy in strategies] for strategies in KINDS.values()))
MIXES = [mix for names in _NAMES if _is_sound(mix := dict(zip(KINDS, names, strict=True)))]
"""Every combination of strategies that can work together."""
UNPLANNED = [mix for mix in MIXES if not _num_planned(mix)]
"""Those that can work with every schedule."""


def any_schedule(rng: random.Random) -> Schedule:
    """A sound one; unsound draws are thrown away."""
    while True:
        try:
            return one_schedule(rng)
        except ValueError:
            continue


def one_schedule(rng: random.Random, **changes: object) -> Schedule:
    """Raises ValueError if what was drawn is unsound."""
    return sound(Schedule(**{**_BASE, **_draw(rng), **changes}))


def tail_batching(rng: random.Random, **changes: object) -> Schedule:
    batch_size, group_size = rng.randint(1, 4), rng.randint(1, 3)
    drawn = {
        **_common(rng),
        "batch_size": batch_size,
        "group_size": group_size,
        "launch_prompts": batch_size + rng.randint(1, batch_size),
        "launch_responses": group_size + rng.randint(0, 2),
        "leftovers": Leftovers.DEFER,
        "max_steps": rng.randint(4, 9),
        **_stream(rng, batch_size),
    }
    return sound(Schedule(**{**_BASE, **drawn, **changes}))


def active_partial(rng: random.Random, **changes: object) -> Schedule:
    batch_size = rng.randint(1, 4)
    drawn = {
        **_common(rng),
        "batch_size": batch_size,
        "group_size": rng.randint(1, 3),
        "launch_prompts": 2 * batch_size,
        "leftovers": Leftovers.RESUME,
        "max_staleness": None,
        "max_steps": rng.randint(3, 7),
        **_stream(rng, batch_size),
    }
    return sound(Schedule(**{**_BASE, **drawn, **changes}))


def coordinated(rng: random.Random, **changes: object) -> Schedule:
    """Work moves between instances of different versions: any mix of strategies, on engines of any size."""
    batch_size = rng.randint(1, 4)
    launch_prompts = rng.choice([batch_size, batch_size + 1])
    drawn = {
        **_common(rng),
        "batch_size": batch_size,
        "group_size": rng.randint(1, 3),
        "launch_prompts": launch_prompts,
        "admission": rng.choice(
            [AdmissionRule.DEADLINE, AdmissionRule.ORDER][: 2 if launch_prompts == batch_size else 1]
        ),
        "max_stuck_s": rng.choice([None, None, 15.0, 60.0]),
        "on_stuck": rng.choice(list(OnStuck)),
        "leftovers": Leftovers.KEEP,
        "max_staleness": rng.randint(0, 3),
        "max_steps": rng.randint(2, 7),
        "num_instances": rng.randint(1, 4),
        "coordination": _coordination(rng),
    }
    return sound(Schedule(**{**_BASE, **drawn, **changes}))


def _coordination(rng: random.Random) -> Coordination:
    return Coordination(
        **_mix(rng, MIXES),
        costs=draw_costs(rng),
        kv_tokens=rng.choice([0, 12, 40]),
        max_running=rng.choice([0, 1, 4]),
        prompt_length=2,
        min_gain=rng.choice([0.1, 0.3, 1.0]),
        max_waiting=rng.choice([0, 1, 3]),
        max_gap=rng.choice([1.0, 2.0, 5.0]),
        pause_s=rng.choice([0.0, 3.0]),
        plan_interval_s=rng.choice([None, 0.0, 0.7, 3.0]),
        is_global=rng.random() < 0.2,
    )


def _mix(rng: random.Random, mixes: Sequence[dict[str, str]]) -> dict[str, str]:
    """One of these mixes. All routing strategies are equally likely; planned other ones come more often."""
    routing = rng.choice(sorted({mix["routing"] for mix in mixes}))
    others = [mix for mix in mixes if mix["routing"] == routing]
    return rng.choices(others, weights=[3 ** _num_planned(mix) for mix in others])[0]


def _common(rng: random.Random) -> dict[str, object]:
    return {
        "num_instances": rng.randint(1, 3),
        "max_in_flight": rng.randint(1, 8),
        "eval_sets": rng.choice([(), (EvalSet(name="heldout", num_prompts=2, group_size=2),)]),
        "eval_interval": rng.choice([None, 1, 2]),
        "save_interval": rng.choice([None, 1, 2]),
    }


def _draw(rng: random.Random) -> dict[str, object]:
    batch_size, group_size = rng.randint(1, 4), rng.randint(1, 3)
    bound = rng.choice([0, 0, 1, 2, None])
    admission = rng.choice([AdmissionRule.DEADLINE] * 3 + [AdmissionRule.COUNT, AdmissionRule.ORDER])
    drawn = {
        **_common(rng),
        "batch_size": batch_size,
        "group_size": group_size,
        "max_steps": rng.randint(1, 6),
        "launch_prompts": rng.choice([0, batch_size, batch_size + 1, 2 * batch_size]),
        "launch_responses": group_size + rng.randint(0, 2),
        "leftovers": rng.choice(list(Leftovers)),
        "max_staleness": bound,
        "admission": admission,
        "rounds_ahead": rng.choice([0, 0, 1, 2]),
        "placement": rng.choice(list(Placement)),
        "keep_deferred_tokens": rng.random() < 0.3,
        "epoch_end": rng.choice([EpochEnd.CARRY] * 3 + [EpochEnd.FLUSH]),
        "max_versions_per_sample": rng.choice([None, None, 1, 2]),
        "version_cap": rng.choice(list(VersionCap)),
        "has_quotas": rng.random() < 0.2,
        "is_reward_streamed": rng.random() < 0.8,
        "drops_failed_rewards": rng.random() < 0.2,
        "filters_equal_scores": rng.random() < 0.3,
        "coordination": Coordination(**_mix(rng, UNPLANNED)),
        "score_parts": rng.choice([(Part.FUNCTION,)] * 3 + [(Part.TESTS,), tuple(Part)]),
    }
    # Where it cannot work it is not drawn: too few schedules would be left.
    is_apart = drawn["leftovers"] is not Leftovers.KEEP and drawn["placement"] is not Placement.COLOCATED
    return {**drawn, **(_stream(rng, batch_size) if is_apart and drawn["is_reward_streamed"] else {})}


def _stream(rng: random.Random, batch_size: int) -> dict[str, object]:
    """How steps are streamed, if at all."""
    return {"stream": rng.choice(list(Stream)), "stream_groups": rng.randint(1, batch_size)}


def lending(rng: random.Random, num_instances: int) -> dict[str, object]:
    """Instances are lent to training. Some places have two instances or two replicas."""
    numbers, places = list(range(num_instances)), list[SharedPlace]()
    while numbers:
        size = min(len(numbers), rng.choice([1, 1, 2]))
        mine, numbers = numbers[:size], numbers[size:]
        replicas = rng.choice([1, 1, 2])
        first = sum(len(place.replicas) for place in places)
        places.append(SharedPlace(instances=tuple(mine), replicas=tuple(range(first, first + replicas))))
    strategy = rng.choice([Scaling.FIXED, Scaling.KV_PEAK]).value
    chosen = Lending(strategy=strategy, places=tuple(places), at=rng.choice([0.2, 0.4]), max_length=40)
    engine = Coordination(kv_tokens=rng.choice([0, 0, 60, 200]), max_running=rng.choice([0, 8]), prompt_length=2)
    return {"lending": chosen, "coordination": engine, "num_instances": num_instances, "rounds_ahead": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    schedule: Schedule
    world: World
    verdict: do.FinishRun

    @property
    def commands(self) -> Iterator[do.Command]:
        for entry in self.world.entries:
            yield from entry.commands

    def rounds(self) -> Iterator[tuple[do.OpenRound, do.CloseRound]]:
        """Rounds that came to their end."""
        opened: do.OpenRound | None = None
        for command in self.commands:
            match command:
                case do.OpenRound():
                    opened = command
                case do.CloseRound():
                    assert opened is not None
                    assert opened.round == command.round
                    yield opened, command

    def steps(self) -> list[do.Accumulate]:
        """The last asking for each step, its pieces in one: after a crash it is asked for again."""
        found: dict[Version, do.Accumulate] = {}
        for command in self.commands:
            if isinstance(command, do.Accumulate):
                found[command.version] = in_one(found[command.version], command) if command.piece else command
        return list(found.values())

    def offered(self) -> Counter[GroupId]:
        events = [e.event for e in self.world.entries if isinstance(e.event, ev.PromptsOffered)]
        mine = [event for event in events if event.source == self.schedule.train_source]
        return Counter(GroupId(event.source, *prompt) for event in mine for prompt in event.prompts)

    def trained(self) -> Counter[GroupId]:
        return Counter(group for step in self.steps() for group in {r.group for r in step.responses})

    def left_out(self) -> set[GroupId]:
        found: set[GroupId] = set()
        for command in self.commands:
            match command:
                case do.ReportDropped(filtered=filtered, dropped=dropped):
                    found |= {*filtered, *dropped}
                case do.CloseRound(dropped=dropped):
                    found |= {*dropped}
        return found


def in_one(first: do.Accumulate, second: do.Accumulate) -> do.Accumulate:
    """Two pieces of a step as one, in the order of the responses."""
    both = (first, second)
    told = sorted(each for piece in both for each in zip(piece.responses, piece.scores, piece.oldest, strict=True))
    return do.Accumulate(
        version=first.version,
        responses=tuple(response for response, _, _ in told),
        scores=tuple(score for _, score, _ in told),
        truncated=tuple(sorted((*first.truncated, *second.truncated))),
        oldest=tuple(oldest for _, _, oldest in told),
    )


def check_conservation(found: History) -> None:
    """Every prompt that was offered is in exactly one place: trained, live, queued, held back or left out."""
    rooms = found.world.coordinator.rooms
    live = {group for group in rooms.responses.groups if group.source == found.schedule.train_source}
    parts = [set(found.trained()), live, set(rooms.collection.held), found.left_out()]
    assert sum(len(part) for part in parts) == len(set().union(*parts)), "a prompt is in two places"
    assert set().union(*parts) == set(found.offered()), "a prompt is nowhere, or nobody offered it"


def check_batches(found: History) -> None:
    """Every step was taken on whole groups, in their order, and no group was trained twice."""
    schedule = found.schedule
    assert len(found.steps()) == schedule.max_steps
    assert max(found.trained().values()) == 1, "a prompt was trained twice in one pass"
    for step in found.steps():
        assert list(step.responses) == sorted(step.responses)
        groups = Counter(r.group for r in step.responses)
        if schedule.epoch_end is EpochEnd.CARRY:
            assert len(groups) == schedule.batch_size
        if not schedule.drops_failed_rewards:
            assert set(groups.values()) == {schedule.group_size}


def check_bound(found: History) -> None:
    """At the step of version v every token is of version v - bound or newer, as the reports have it."""
    oldest: dict[ResponseId, int] = {}
    lengths: Counter[ResponseId] = Counter()
    for entry in found.world.entries:
        if isinstance(entry.event, ev.RolloutReported):
            for part in found.world.believed(entry.event):
                if part.length > lengths[part.response]:
                    lengths[part.response] = part.length
                    oldest.setdefault(part.response, entry.event.version)
        for step in (command for command in entry.commands if isinstance(command, do.Accumulate)):
            # A response without tokens is as fresh as can be.
            assert step.oldest == tuple(oldest.get(r, step.version) for r in step.responses)
            if found.schedule.is_strict:
                assert min(step.oldest) >= step.version - (found.schedule.max_staleness or 0)


def history(schedule: Schedule, rng: random.Random, *, trouble: float, checks: bool = True) -> History:
    world = World(schedule, rng, num_prompts=NUM_PROMPTS, trouble=trouble, checks=checks)
    return History(schedule=schedule, world=world, verdict=world.run())


def started(**changes: object) -> World:
    """The world of a small run that has just begun."""
    schedule = Schedule(**{"train_source": "train", "batch_size": 2, "group_size": 2, "max_steps": 3, **changes})
    world = World(schedule, random.Random(0))
    world.tell(ev.RunStarted(schedule=schedule))
    return world


def until(world: World, is_there: Callable[[], bool]) -> World:
    while not is_there():
        assert world.verdict is None, "the run ended before it came to that"
        world.advance()
    return world


def running(world: World) -> ResponseId:
    """The first response that runs."""
    until(world, lambda: bool(world.running.get(I0)))
    return next(iter(world.running[I0]))
