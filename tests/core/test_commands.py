"""When something is asked for, and when it is not."""

from __future__ import annotations

import random

import pytest

from core.histories import History, any_schedule, history, started, until
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId
from tailrace.core.outcomes import Outcome, Part
from tailrace.core.rewards.room import Requested
from tailrace.core.schedule import EvalSet, Leftovers, Placement, Schedule

HELDOUT = {"eval_sets": (EvalSet(name="heldout", num_prompts=3, group_size=2),), "eval_interval": 1}


def finished(**changes: object) -> History:
    """A history that came to its end without trouble."""
    basis = {"train_source": "train", "batch_size": 2, "group_size": 2, "max_steps": 5, "num_instances": 2}
    found = history(Schedule(**{**basis, **changes}), random.Random(0), trouble=0.0)
    assert found.verdict.is_complete
    return found


def test_a_run_begins_with_the_first_prompts_of_the_first_pass() -> None:
    asked = [command for command in started().entries[0].commands if isinstance(command, do.RequestPrompts)]
    assert asked == [do.RequestPrompts(source="train", epoch=0, offset=0, count=2)]


@pytest.mark.parametrize(
    "changes",
    [
        {"leftovers": Leftovers.KEEP, "max_staleness": 2},
        {"rounds_ahead": 1, "max_staleness": 1},
        {"leftovers": Leftovers.DROP, "launch_prompts": 3, "rounds_ahead": 1, "max_staleness": 1},
    ],
)
def test_a_new_version_interrupts_what_runs_only_where_no_round_would_end(changes: dict[str, object]) -> None:
    has_interrupted = any(isinstance(command, do.Interrupt) for command in finished(**changes).commands)
    assert has_interrupted == (changes.get("leftovers") is Leftovers.KEEP)


def test_colocated_instances_take_their_memory_again_with_the_version_just_trained() -> None:
    found, version, pulled = finished(placement=Placement.COLOCATED), 0, []
    for entry in found.world.entries:
        if isinstance(entry.event, ev.StepTrained):
            version = entry.event.version
        pulls = [command for command in entry.commands if isinstance(command, do.PullWeights)]
        assert all(pull.version == version for pull in pulls)
        pulled += pulls
    assert len(pulled) == len(set(pulled)) >= 8, "an instance loaded a version twice, or too few did"


def test_a_barrier_holds_no_evaluation_back() -> None:
    num_ended = 0
    for entry in finished(is_reward_streamed=False, **HELDOUT).world.entries:
        if isinstance(entry.event, ev.RolloutReported):
            ended = {f.response for f in entry.event.finished if f.response.group.source == "heldout"}
            scored = {r for c in entry.commands if isinstance(c, do.Score) for r in c.responses}
            assert ended <= scored
            num_ended += len(ended)
    assert num_ended == 6 * 6, "six evaluations of six responses"


def test_a_trainer_is_asked_only_for_what_follows_the_version_it_holds() -> None:
    num_asked = num_resumed = 0
    for seed in range(6):
        rng = random.Random(f"trainer-{seed}")
        held: int | None = None
        for entry in history(any_schedule(rng), rng, trouble=0.1, checks=False).world.entries:
            match entry.event:
                case ev.RunResumed():
                    held, num_resumed = None, num_resumed + 1
                case ev.TrainerReached(version=version) | ev.StepTrained(version=version):
                    held = version
            asked = [c for c in entry.commands if isinstance(c, do.Accumulate | do.PublishWeights)]
            assert all(command.version == held for command in asked)
            num_asked += len(asked)
    assert num_asked > 30
    assert num_resumed > 6


def test_news_of_a_reward_that_was_called_off_is_the_last_of_it() -> None:
    world = started(batch_size=1, launch_responses=4)
    requested = world.coordinator.rooms.rewards.requested.setdefault(Part.FUNCTION, Requested())
    aborted = requested.aborting
    until(world, lambda: bool(aborted))
    scores = [ev.Scored(response=r, outcome=Outcome.ABORTED, score=0.0, seconds=0.0) for r in aborted]
    world.tell(ev.ResponsesScored(scores=tuple(scores)))
    assert not aborted


def ages(world: World) -> dict[InstanceId, tuple[int, GroupId]]:
    """The version of what each instance generates, and which group that is."""
    rooms = world.coordinator.rooms
    groups = {i.id: next(iter(i.running)).group for i in rooms.fleet.instances.values() if i.running}
    return {instance: (rooms.responses.groups[group].version or 0, group) for instance, group in groups.items()}


def test_what_was_begun_with_the_oldest_version_goes_on_first() -> None:
    """Each instance generates one response and both are lost, the younger first."""
    world = started(
        batch_size=1,
        group_size=1,
        max_steps=9,
        launch_prompts=2,
        leftovers=Leftovers.RESUME,
        max_staleness=None,
        num_instances=2,
        max_in_flight=1,
    )
    until(world, lambda: len({version for version, _ in ages(world).values()}) == 2)
    (_, oldest), (_, youngest) = sorted(ages(world).values())
    by_group = {group: instance for instance, (_, group) in ages(world).items()}
    for group in (youngest, oldest):
        world.lose(by_group[group], "it was killed")
    assert list(world.coordinator.rooms.responses.pending) == [youngest, oldest]
    begin = len(world.entries)
    until(world, lambda: bool(given(world, begin)))
    assert given(world, begin)[0] == oldest


def test_of_one_version_what_is_nearest_to_its_end_goes_on_first() -> None:
    world = started()
    first = until(world, lambda: len(world.running.get(InstanceId(0), ())) == 4).running[InstanceId(0)]
    near = list(first)[-1]
    world.finish_rate = lambda response: float(response == near)  # type: ignore[method-assign]
    until(world, lambda: world.coordinator.rooms.responses.groups[near.group].num_unsettled == 1)
    world.lose(InstanceId(0), "it was killed")
    assert next(iter(world.coordinator.rooms.responses.pending)) != near.group
    begin = len(world.entries)
    until(world, lambda: bool(given(world, begin)))
    assert given(world, begin)[0] == near.group


def given(world: World, begin: int) -> list[GroupId]:
    """Groups that were given to an instance since that entry."""
    commands = [command for entry in world.entries[begin:] for command in entry.commands]
    submits = [command for command in commands if isinstance(command, do.Submit)]
    return [dispatch.response.group for submit in submits for dispatch in submit.dispatches]
