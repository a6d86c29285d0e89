"""Whole runs in virtual time, with the coordinator that real runs use."""

from __future__ import annotations

import pytest

from sim.worlds import small_scenario
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.journal import Entry, decode, encode, replay_all
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import Schedule
from tailrace.observe.account import Account
from tailrace.observe.schedules import schedule_table
from tailrace.policies.strategies import policies_of
from tailrace.sim.driver import Agenda, Deadlock, Driver
from tailrace.sim.result import SimResult, simulate
from tailrace.sim.scenario import Scenario


def journal(scenario: Scenario, name: str = "sync") -> tuple[SimResult, list[Entry]]:
    entries: list[Entry] = []
    return simulate(scenario, name, record=entries.append), entries


@pytest.fixture(scope="module")
def synchronous() -> tuple[SimResult, list[Entry]]:
    return journal(small_scenario(schedule__eval_prompts=5, schedule__eval_interval=2, schedule__save_interval=2))


def test_a_simulated_run_comes_to_its_end(synchronous: tuple[SimResult, list[Entry]]) -> None:
    result, entries = synchronous
    assert result.is_complete
    assert result.figures.num_steps == 4
    saved = [entry.event.version for entry in entries if isinstance(entry.event, ev.CheckpointSaved)]
    evaluated = [c.version for entry in entries for c in entry.commands if isinstance(c, do.CloseEvaluation)]
    assert (saved, evaluated) == ([2, 4], [0, 2, 4])


def test_a_simulated_journal_replays_on_the_coordinator_of_real_runs(
    synchronous: tuple[SimResult, list[Entry]],
) -> None:
    _, entries = synchronous
    read_back = [decode(encode(entry)) for entry in entries]
    assert replay_all(read_back, lambda schedule: Coordinator(schedule, policies=policies_of(schedule))) == len(entries)


def test_metrics_and_timeline_read_a_simulated_journal(synchronous: tuple[SimResult, list[Entry]]) -> None:
    result, entries = synchronous
    account = Account.of(entries)
    assert [row["step"] for row in account.steps] == [1, 2, 3, 4]
    steps_s = sum(row["timing_s/step"] for row in account.steps)
    assert steps_s == pytest.approx(4 * result.figures.seconds_per_step, rel=1e-6)
    for lane in account.timeline.lanes():
        assert lane.idle_s >= 0


def test_the_same_seed_gives_the_same_journal_and_another_seed_another() -> None:
    first, again, other = (journal(small_scenario(seed=seed))[1] for seed in (0, 0, 1))
    assert [encode(entry) for entry in first] == [encode(entry) for entry in again]
    assert [encode(entry) for entry in first] != [encode(entry) for entry in other]


def test_every_response_has_the_length_drawn_for_it_however_many_instances_there_are() -> None:
    def lengths(num_instances: int) -> dict[object, tuple[int, Finish]]:
        _, entries = journal(small_scenario(engine__num_instances=num_instances))
        reports = [entry.event for entry in entries if isinstance(entry.event, ev.RolloutReported)]
        return {end.response: (end.length, end.finish) for report in reports for end in report.finished}

    assert lengths(1) == lengths(3)


def test_faults_delay_a_run_and_lose_nothing() -> None:
    healthy, _ = journal(small_scenario())
    faults = [
        {"kind": "lost", "instance": 1, "at": 1.5, "down_s": 20.0},
        {"kind": "slow", "instance": 0, "at": 0.5, "until": 9.0, "factor": 3.0},
        {"kind": "message", "instance": 0, "at": 3.0, "repeat_s": 2.0},
    ]
    result, entries = journal(small_scenario(faults=faults))
    assert result.is_complete
    assert sum(isinstance(entry.event, ev.InstanceLost) for entry in entries) == 1
    assert result.figures.tokens_trained == healthy.figures.tokens_trained
    assert result.figures.wall_s > healthy.figures.wall_s


def test_preemptions_slow_a_run_down_and_change_no_length() -> None:
    roomy, _ = journal(small_scenario())
    tight, entries = journal(small_scenario(engine__kv_capacity=560))
    reports = [entry.event for entry in entries if isinstance(entry.event, ev.RolloutReported)]
    assert max(report.num_preemptions for report in reports) > 0
    assert tight.figures.tokens_trained == roomy.figures.tokens_trained
    assert tight.figures.wall_s > roomy.figures.wall_s


def test_rewards_behind_a_barrier_take_longer() -> None:
    variants = {"barrier": {"preset": "sync", "reward": {"timing": "barrier"}}}
    scenario = small_scenario(schedule__variants=variants, reward__num_workers=1)
    streamed, barrier = simulate(scenario, "sync"), simulate(scenario, "barrier")
    assert barrier.figures.seconds_per_step > streamed.figures.seconds_per_step
    cells = schedule_table.cells({"sync": streamed.figures, "barrier": barrier.figures})
    lines = schedule_table.lines(cells)
    assert [line.split()[0] for line in lines] == ["schedule", "sync", "barrier"]
    assert lines[1].split()[1] == "1.00x"


def test_a_world_that_never_answers_is_a_deadlock_that_names_the_wait() -> None:
    class Silent:
        def perform(self, command: do.Command) -> None:
            pass

    class WithoutTimers(Coordinator):
        """Sets no timers, so that nothing at all is left to happen."""

        def handle(self, event: ev.Event, *, now: float) -> list[do.Command]:
            return [c for c in super().handle(event, now=now) if not isinstance(c, do.SetTimer)]

    schedule = Schedule(train_source="train", batch_size=1, group_size=1, max_steps=1)
    driver = Driver(WithoutTimers(schedule, policies=policies_of(schedule)), Silent(), Agenda())
    with pytest.raises(Deadlock, match="start of instance 0"):
        driver.run(ev.RunStarted(schedule=schedule))


def test_what_is_remembered_does_not_grow_with_the_run() -> None:
    from tailrace.observe.schedules.schedule_account import ScheduleAccount

    account = ScheduleAccount()
    simulate(small_scenario(schedule__num_steps=6), "sync", record=account.feed)
    assert account._run.state.responses == {}
    figures = account.figures()
    assert figures.tokens_generated == figures.tokens_trained + figures.tokens_wasted + account.tokens_held
