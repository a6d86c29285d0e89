"""Two clocks of an instance that has work: when it was last heard of, and when it last got on with its work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.histories import I0, started, until
from core.world import World
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.costs import PrefillWork
from tailrace.core.ids import ResponseId, Version
from tailrace.core.journal import Entry, decode, encode
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import Limits, Schedule
from tailrace.policies.strategies import policies_of

LIMITS = Limits(progress_s=10.0, stall_s=100.0, start_s=1e6, prompts_s=1e6, reward_s=1e6)
SCHEDULE = Schedule(train_source="train", batch_size=1, group_size=2, max_steps=1, limits=LIMITS)
FIRST, SECOND = (ResponseId.parse(f"train:0:0:{member}:0") for member in (0, 1))


class Busy:
    """A coordinator whose only instance runs two responses since second 0."""

    def __init__(self, schedule: Schedule = SCHEDULE) -> None:
        self.coordinator = Coordinator(schedule, policies=policies_of(schedule))
        self.tell(0.0, ev.RunStarted(schedule=schedule))
        self.tell(0.0, ev.TrainerReached(version=Version(0)))
        self.tell(0.0, ev.PromptsOffered(source="train", prompts=((0, 0),), next_epoch=0, next_offset=1))
        started = ev.InstanceStarted(instance=I0, version=Version(0), incarnation=1)
        assert any(isinstance(command, do.Submit) for command in self.tell(0.0, started))

    def tell(self, now: float, event: ev.Event) -> list[do.Command]:
        return self.coordinator.handle(event, now=now)

    def report(self, now: float, *lengths: int, incarnation: int = 1, prefill: PrefillWork | None = None) -> list[str]:
        """A report comes: say why the instance is killed, if it is."""
        parts = zip((FIRST, SECOND), lengths, strict=False)
        report = ev.RolloutReported(
            instance=I0,
            incarnation=incarnation,
            version=Version(0),
            progressed=tuple(ev.Progressed(response=response, length=length) for response, length in parts),
            prefill=prefill,
        )
        return kills(self.tell(now, report))

    def wake(self, now: float) -> list[str]:
        return kills(self.tell(now, ev.TimerFired()))


def kills(commands: list[do.Command]) -> list[str]:
    return [command.reason for command in commands if isinstance(command, do.KillInstance)]


def prefilled(num_tokens: int) -> PrefillWork:
    return PrefillWork(num_batches=1, num_tokens=num_tokens, seconds=0.1)


def test_an_instance_that_reports_during_a_long_prefill_is_not_killed() -> None:
    """Its reports are empty: nothing is generated yet."""
    busy = Busy()
    for second in range(1, 60):
        assert busy.report(float(second)) == []
    assert busy.wake(68.9) == [], "it was heard of 9.9 seconds ago"
    assert busy.wake(69.0) != []


def test_an_instance_is_killed_when_nothing_was_heard_of_it_although_it_may_still_work() -> None:
    busy = Busy()
    busy.report(5.0, 3)
    assert busy.wake(14.9) == []
    assert busy.wake(15.0) == ["waited 10 s for response train:0:0:0:0 and 1 more on instance 0 (limit 10 s)"]


def test_an_instance_that_repeats_the_same_lengths_is_killed_at_a_limit_of_its_own() -> None:
    busy = Busy()
    busy.report(1.0, 3, 4)
    reasons = [reason for second in range(2, 110) for reason in busy.report(float(second), 3, 4)]
    assert reasons == ["waited 100 s for new tokens of train:0:0:0:0 and 1 more on instance 0 (limit 100 s)"]


def test_new_tokens_of_one_response_are_progress() -> None:
    busy = Busy()
    reasons = [reason for second in range(1, 300) for reason in busy.report(float(second), 3, second)]
    assert reasons == []


def test_the_end_of_a_response_is_progress() -> None:
    busy = Busy()
    for second in range(1, 99):
        busy.report(float(second), 3, 4)
    end = ev.Finished(response=FIRST, length=3, finish=Finish.STOP)
    busy.tell(99.0, ev.RolloutReported(instance=I0, incarnation=1, version=Version(0), finished=(end,)))
    assert [reason for second in range(100, 199) for reason in busy.report(float(second), 3, 4)] == []
    assert busy.report(199.0, 3, 4) != []


def test_more_prefill_is_progress_and_the_same_or_less_is_not() -> None:
    busy = Busy()
    for second in range(1, 300):
        assert busy.report(float(second), prefill=prefilled(second)) == []
    reasons = []
    for second in range(300, 400):
        late = prefilled(299 if second % 2 else 10)  # an earlier report may come late
        reasons += busy.report(float(second), prefill=late)
    assert reasons == ["waited 100 s for new tokens of train:0:0:0:0 and 1 more on instance 0 (limit 100 s)"]


def test_prefill_counts_from_nothing_again_after_a_restart() -> None:
    busy = Busy()
    busy.report(1.0, prefill=prefilled(1000))
    busy.tell(2.0, ev.InstanceLost(instance=I0, incarnation=1, reason="it was killed"))
    busy.tell(3.0, ev.InstanceStarted(instance=I0, version=Version(0), incarnation=2))
    for second in range(4, 300):
        assert busy.report(float(second), incarnation=2, prefill=prefilled(second)) == []


def test_a_report_of_an_earlier_start_is_no_sign_of_life() -> None:
    busy = Busy()
    busy.tell(1.0, ev.InstanceLost(instance=I0, incarnation=1, reason="it was killed"))
    busy.tell(2.0, ev.InstanceStarted(instance=I0, version=Version(0), incarnation=2))
    busy.report(11.0, 5, incarnation=1)
    assert busy.wake(12.0) != []


def test_reports_of_an_instance_that_is_being_killed_do_not_put_off_its_end() -> None:
    busy = Busy(replace(SCHEDULE, limits=replace(LIMITS, start_s=20.0)))
    assert busy.wake(10.0) != []
    for second in range(11, 30):
        busy.report(float(second), second)
    (finish,) = busy.tell(30.0, ev.TimerFired())
    assert finish == do.FinishRun(is_complete=False, reason="waited 20 s for end of instance 0 (limit 20 s)")


def test_a_late_report_does_not_put_off_the_limit_of_a_pull() -> None:
    world = started(num_instances=1, limits=Limits(weights_s=20.0, start_s=1e6, prompts_s=1e6))
    until(world, lambda: any(isinstance(command, do.PullWeights) for command in world.open))
    began = next(entry.now for entry in reversed(world.entries) if _asks_to_pull(entry))
    late = world.signed(ev.RolloutReported(instance=I0, version=Version(0)))
    world.now = began + 19.0
    world.tell(late)
    world.now = began + 20.0
    world.tell(ev.TimerFired())
    assert kills(list(world.entries[-1].commands)) != []


def _asks_to_pull(entry: Entry) -> bool:
    return any(isinstance(command, do.PullWeights) for command in entry.commands)


def aborting() -> tuple[World, float]:
    """A world whose instance was told to abort all that it runs, with the time of the command."""
    world = started(batch_size=1, group_size=1, launch_responses=3, max_steps=9, limits=LIMITS)
    fleet = world.coordinator.rooms.fleet
    until(world, lambda: len(fleet.instances[I0].aborting) > 1 and not fleet.instances[I0].running)
    return world, world.now


@pytest.mark.parametrize("kind", [ev.RolloutReported, ev.ResponsesAborted])
def test_an_instance_that_reports_but_never_confirms_an_abort_is_killed(kind: type[ev.Event]) -> None:
    world, since = aborting()
    empty: ev.Event = ev.ResponsesAborted(instance=I0, aborted=())
    if kind is ev.RolloutReported:
        empty = ev.RolloutReported(instance=I0, version=world.versions[I0])
    empty = world.signed(empty)
    reasons = []
    for second in range(1, 102):
        world.now = since + second
        world.tell(empty)
        reasons += kills(list(world.entries[-1].commands))
    assert len(reasons) == 1
    assert "instance 0 to abort" in reasons[0]
    assert "(limit 100 s)" in reasons[0]


def test_the_confirmation_of_one_abort_is_progress() -> None:
    world, since = aborting()
    first = next(iter(world.coordinator.rooms.fleet.instances[I0].aborting))
    empty = ev.RolloutReported(instance=I0, version=world.versions[I0])
    one = ev.ResponsesAborted(instance=I0, aborted=(ev.Aborted(response=first, length=0),))
    for second in range(1, 150):
        world.now = since + second
        world.tell(world.signed(one if second == 60 else empty))
        assert kills(list(world.entries[-1].commands)) == []


def test_a_run_of_an_earlier_release_is_judged_as_it_was() -> None:
    """Only parts of reports counted, whatever they said, and there was one clock."""
    busy = Busy(replace(SCHEDULE, edition=1, limits=replace(LIMITS, stall_s=None)))
    assert [reason for second in range(1, 300) for reason in busy.report(float(second), 3, 4)] == []
    for second in range(300, 309):
        assert busy.report(float(second)) == []
    assert busy.report(309.0) != []


def test_a_journal_of_an_earlier_release_names_no_limit_of_stalls_and_has_none() -> None:
    entry = Entry(now=0.0, event=ev.RunStarted(schedule=replace(SCHEDULE, limits=Limits())), commands=())
    line = encode(entry)
    assert "stall_s" not in line
    found = decode(line.replace('"edition":2,', ""))
    assert isinstance(found.event, ev.RunStarted)
    assert found.event.schedule.edition == 1
    assert found.event.schedule.limits.stall_s is None


@pytest.mark.parametrize("stall_s", [None, 1.0, 100.0])
def test_the_shortest_limit_knows_that_of_stalls(stall_s: float | None) -> None:
    assert Limits(stall_s=stall_s).shortest_s == min(stall_s or 60.0, 60.0)
