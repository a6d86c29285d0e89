"""The simulated world under a minimal scheduler."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from sim.cluster.clusters import small
from sim.cluster.first_come import FirstCome
from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.sim.cluster.result import ClusterResult, simulate_cluster
from tailrace.sim.cluster.scenario import ClusterScenario
from tailrace.sim.cluster.sim_group import SchedulerError
from tailrace.sim.driver import Deadlock

Heard = list[tuple[float, ev.Event]]


def run(scenario: ClusterScenario, jobs_per_group: int = 1) -> tuple[ClusterResult, Heard]:
    heard: Heard = []
    result = simulate_cluster(
        scenario,
        "spread",
        partial(FirstCome, jobs_per_group=jobs_per_group),
        record=lambda now, event, commands: heard.append((now, event)),
    )
    return result, heard


def of_kind(heard: Heard, kind: type[ev.Event]) -> list[tuple[float, Any]]:
    return [(now, event) for now, event in heard if isinstance(event, kind)]


@pytest.mark.parametrize(("overlap", "seconds"), [("serial", 303.0), ("one-step", 340.0)])
def test_a_lone_job_takes_its_time_alone(overlap: str, seconds: float) -> None:
    result, _ = run(small(jobs={"overlap": overlap}))
    [job] = result.jobs
    assert job.ended == job.alone_s == seconds
    assert job.slowdown == 1.0
    assert result.figures.saving == pytest.approx(0.0)
    assert result.figures.device_hours_per_step * 3 * 3600 == pytest.approx(12 * seconds)


def test_a_lone_job_takes_its_time_alone_with_jitter_too() -> None:
    result, _ = run(small(jobs={"jitter": 0.1, "overlap": "one-step", "min_steps": 50, "max_steps": 50}))
    assert result.jobs[0].slowdown == pytest.approx(1.0)


def test_complementary_phases_do_not_slow_each_other() -> None:
    """Without transfers, the second job asks exactly when the first one has ended its phase."""
    steps = {"cycle_s": None, "steps": [[60.0, 20.0, 40.0]], "weights_gb": 0.0, "optimizer_gb": 0.0}
    alone, _ = run(small(jobs={"count": 1}, models=steps))
    both, _ = run(small(jobs={"count": 2}, models=steps, rules={"max_duty": 1.0}), jobs_per_group=2)
    assert both.jobs[0].ended == alone.jobs[0].ended
    # the second job starts at the same time, so it waits for one phase, and then never again
    assert both.jobs[1].ended == alone.jobs[0].ended + 60.0
    assert both.jobs[1].lease_wait_s == 60.0
    assert both.figures.utilisation == pytest.approx(360 / 420)


def test_two_jobs_that_ask_at_once_take_turns() -> None:
    result, _ = run(small(jobs={"count": 2, "min_steps": 1, "max_steps": 1}), jobs_per_group=2)
    # 60 rollout, 3 load, 40 train; the other: 3 offload, 3 load, 40 train. The first has left, so there is no offload.
    assert [job.ended for job in result.jobs] == [103.0, 146.0]
    assert [(s.job, s.kind, s.start, s.end) for s in result.spans] == [
        ("0-a", "load", 60.0, 63.0),
        ("0-a", "train", 63.0, 103.0),
        ("1-a", "load", 103.0, 106.0),
        ("1-a", "train", 106.0, 146.0),
    ]


def test_a_switch_moves_the_state_out_and_in() -> None:
    result, heard = run(small(jobs={"count": 2, "min_steps": 2, "max_steps": 2}), jobs_per_group=2)
    moved = [event for _, event in of_kind(heard, ev.TransferMeasured)]
    assert {event.num_bytes for event in moved} == {30 * 10**9}
    assert {event.seconds for event in moved} == {3.0}
    assert result.figures.num_steps == 4
    assert result.figures.switches_per_step == 3 / 4
    assert result.figures.bytes_moved == len(moved) * 30 * 10**9


def test_state_that_does_not_fit_in_host_memory_comes_from_disk() -> None:
    result, _ = run(small(jobs={"min_steps": 1, "max_steps": 1}, cluster={"host_gb_per_node": 5.0}))
    # two nodes: 10 of 30 GB in host memory; 1 s for these, 20 s for the others
    assert result.jobs[0].ended == 60.0 + 21.0 + 40.0


def test_the_slack_of_a_one_step_job_is_what_its_rollout_lasts_longer() -> None:
    _, heard = run(small(jobs={"overlap": "one-step"}))
    asked = [(now, event.operations_s, event.slack_s) for now, event in of_kind(heard, ev.PhaseAsked)]
    assert asked == [
        (100.0, (10.0, 20.0), 60.0),
        (190.0, (10.0,), 0.0),
        (200.0, (10.0, 20.0), 60.0),
        (290.0, (10.0,), 0.0),
        (300.0, (10.0, 20.0), 0.0),
        (330.0, (10.0,), 0.0),
    ]


def test_a_job_says_when_it_expects_to_ask_again() -> None:
    _, heard = run(small(jobs={"overlap": "one-step", "min_steps": 2, "max_steps": 2}))
    assert [event.next_in_s for _, event in of_kind(heard, ev.PhaseEnded)] == [90.0 - 33.0, 0.0, 0.0, None]
    _, heard = run(small(jobs={"min_steps": 2, "max_steps": 2}))
    assert [event.next_in_s for _, event in of_kind(heard, ev.PhaseEnded)] == [60.0, None]


def test_what_jobs_pay_is_what_the_cluster_was_busy_or_reserved() -> None:
    scenario = small(jobs={"count": 5, "jitter": 0.1, "overlap": "one-step"}, cluster={"groups": {"a": 2}})
    result, _ = run(scenario, jobs_per_group=2)
    figures = result.figures
    assert figures.billed_device_hours == pytest.approx(figures.busy_device_hours + figures.reserved_device_hours)
    spans = sum(8 * (span.end - span.start) for span in result.spans)  # they do not overlap: nothing is prefetched
    assert figures.busy_device_hours * 3600 == pytest.approx(spans)
    assert figures.device_hours_per_step * figures.num_steps == pytest.approx(figures.billed_device_hours)


def test_a_job_without_a_trace_reports_its_demand_after_a_clean_period() -> None:
    _, heard = run(small(jobs={"known_share": 0.0}))
    [(at, profiled)] = of_kind(heard, ev.JobProfiled)
    assert at == 203.0  # the first period waited for the state to be loaded
    assert (profiled.trace.period_s, profiled.trace.duty) == (100.0, 0.4)


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    scenario = small(jobs={"count": 4, "jitter": 0.2, "arrivals": "bursty", "rate_per_hour": 30, "burst_size": 2})
    assert run(scenario)[0] == run(scenario)[0]
    assert run(scenario)[0].jobs != run(scenario.with_seed(1))[0].jobs


def crash(at: float, job: int = 0) -> dict[str, Any]:
    return {"kind": "crash", "at": at, "job": job}


@pytest.mark.parametrize("at", [30.0, 61.0, 80.0, 103.0])
def test_a_job_that_crashes_leaves_its_group_to_the_others(at: float) -> None:
    """While it generates, while its state is loaded, while it computes, and when it has just computed."""
    scenario = small(faults=(crash(at),), jobs={"count": 2, "min_steps": 1, "max_steps": 1})
    result, heard = run(scenario, jobs_per_group=2)
    first, second = result.jobs
    assert (first.reason, first.ended, first.steps, first.slowdown) == ("crashed", at, 0, None)
    assert second.ended == max(at, 60.0) + 3.0 + 40.0
    assert [event.reason for _, event in of_kind(heard, ev.JobEnded)] == ["crashed", "finished"]
    assert not result.is_complete
    figures = result.figures
    assert figures.billed_device_hours == pytest.approx(figures.busy_device_hours + figures.reserved_device_hours)


def test_a_job_cannot_crash_before_it_is_submitted() -> None:
    late = {"count": 2, "min_steps": 1, "max_steps": 1, "arrivals": "poisson", "rate_per_hour": 1}
    result, _ = run(small(faults=(crash(0.0, job=1),), jobs=late))
    assert [job.reason for job in result.jobs] == ["finished", "finished"]


def test_a_phase_can_take_ten_times_as_long() -> None:
    result, _ = run(small(faults=({"kind": "slow", "at": 110.0, "job": 0},)))
    assert result.jobs[0].ended == 303.0 + 9 * 40.0


def test_a_lost_node_costs_the_phase_and_the_state_comes_back_from_disk() -> None:
    lost = {"kind": "node", "at": 80.0, "node": "a-0/1", "down_s": 100.0}
    result, heard = run(small(faults=(lost,), jobs={"min_steps": 1, "max_steps": 1}))
    assert [type(event).__name__ for now, event in heard if now in (80.0, 180.0)] == ["NodeLost", "NodeReturned"]
    assert result.jobs[0].ended == 180.0 + 30.0 + 40.0
    assert [(s.kind, s.start, s.end) for s in result.spans][1] == ("train", 63.0, 80.0)
    # nobody pays for a group that is down
    assert result.figures.billed_device_hours * 3600 == pytest.approx(8 * (80 + 70) + 4 * 250)


class Careless(FirstCome):
    """Grants at once whatever is asked for."""

    def handle(self, event: ev.Event, *, now: float) -> list[do.Command]:
        if isinstance(event, ev.PhaseAsked):
            group = self._group_of(event.job)
            load: list[do.Command] = [do.Load(job=event.job, group=group, transfer=1)]
            return [*load, do.GrantLease(job=event.job, group=group, num_operations=1)]
        return super().handle(event, now=now)


def test_a_lease_without_the_state_is_a_mistake_of_the_scheduler() -> None:
    with pytest.raises(SchedulerError, match="not on the devices"):
        simulate_cluster(small(), "spread", Careless)


class Twice(FirstCome):
    """Starts the second job's phase while the first one computes."""

    def _serve(self) -> list[do.Command]:
        self._turn.clear()
        return super()._serve()


def test_two_jobs_cannot_compute_on_one_group() -> None:
    nothing = {"weights_gb": 0.0, "optimizer_gb": 0.0}
    with pytest.raises(SchedulerError, match="computes"):
        simulate_cluster(small(jobs={"count": 2}, models=nothing), "spread", partial(Twice, jobs_per_group=2))


def test_devices_never_hold_more_than_fits() -> None:
    class KeepsAll(FirstCome):
        def handle(self, event: ev.Event, *, now: float) -> list[do.Command]:
            return [each for each in super().handle(event, now=now) if not isinstance(each, do.Offload)]

    with pytest.raises(SchedulerError, match="0 are free"):
        simulate_cluster(small(jobs={"count": 2}), "spread", partial(KeepsAll, jobs_per_group=2))


def test_a_scheduler_that_forgets_a_job_is_found_out() -> None:
    class Forgetful(FirstCome):
        def _serve(self) -> list[do.Command]:
            return []

    with pytest.raises(Deadlock, match="0-a"):
        simulate_cluster(small(), "spread", Forgetful)
