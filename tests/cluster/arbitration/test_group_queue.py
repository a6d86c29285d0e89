"""The turns of one node group: switches, leases, failures, leaving and lost nodes."""

from __future__ import annotations

import pytest

from cluster.arbitration.group_histories import LOAD, OFFLOAD, PREFETCH, SETUP, A, B, C, History, computing
from tailrace.cluster.ids import JobId
from tailrace.cluster.settings import ClusterRules, Grain, Ratio

PLAIN = ClusterRules(transfers=SETUP, prefetch=False)
SINGLE = ClusterRules(transfers=SETUP, prefetch=False, grain=Grain.OPERATION)


def test_the_first_job_is_loaded_and_gets_the_whole_phase() -> None:
    history = History(PLAIN)
    assert history.queue.is_idle
    assert history.ask(A, 0.0, (1.0, 2.0, 3.0)) == ["load a"]
    assert (history.queue.running, history.queue.resident, history.queue.is_idle) == (None, None, False)
    assert history.moved(A, LOAD, 5.0) == ["grant a 3"]
    assert (history.queue.running, history.queue.resident) == (A, A)
    assert history.ended(A, 11.0) == []
    assert (history.queue.running, history.queue.resident, history.queue.is_idle) == (None, A, True)


def test_the_resident_job_needs_no_switch() -> None:
    history = computing(PLAIN)
    history.ended(A, 10.0)
    assert history.ask(A, 20.0) == ["grant a 1"]


def test_a_switch_offloads_the_resident_job_then_loads_the_next_then_grants() -> None:
    history = computing(PLAIN)
    assert history.ask(B, 3.0) == []
    assert history.ended(A, 10.0) == ["offload a"]
    assert history.queue.resident == A
    assert history.moved(A, OFFLOAD, 12.0) == ["load b"]
    assert history.queue.resident is None
    assert history.ask(C, 13.0) == [], "a switch is not interrupted"
    assert history.moved(B, LOAD, 15.0) == ["grant b 1"]


def test_a_lease_of_one_operation_covers_one_operation() -> None:
    history = computing(SINGLE, A, (1.0, 2.0))
    history.ask(B, 0.5)
    assert history.ended(A, 1.0) == ["offload a"]


def test_an_operation_that_follows_at_once_takes_part_in_the_choice() -> None:
    rules = ClusterRules(transfers=SETUP, prefetch=False, grain=Grain.OPERATION, ratio=Ratio.EXECUTION)
    history = computing(rules, A, (1.0, 20.0))
    history.ask(B, 0.5)
    assert history.ended(A, 1.0, next_in_s=0.0) == []
    assert history.queue.wake_at() == 1.0
    assert history.ask(C, 1.0) == [], "the others that ask at this moment wait for it too"
    assert history.ask(A, 1.0, (20.0,)) == ["grant a 1"], "a switch for B costs as much as B computes"


def test_if_that_operation_is_not_asked_for_the_others_go_on() -> None:
    history = computing(SINGLE, A, (1.0, 20.0))
    history.ask(B, 0.5)
    history.ended(A, 1.0, next_in_s=0.0)
    assert history.tick(1.0) == ["offload a"]
    assert history.queue.wake_at() is None
    late = computing(SINGLE, A, (1.0, 20.0))
    late.ended(A, 1.0, next_in_s=0.0)
    assert late.ask(B, 1.5) == ["offload a"], "the moment is over, even if nobody woke the queue"


def test_a_failed_operation_releases_the_group_and_the_others_proceed() -> None:
    """Property 10 of specification 4.6."""
    history = computing(
        ClusterRules(transfers=SETUP, prefetch=False, grain=Grain.OPERATION, hold_s=60.0), A, (1.0, 2.0)
    )
    history.ask(B, 0.5)
    assert history.ended(A, 1.0, failed=True, next_in_s=0.0) == ["offload a"], "nothing is held for the rest of it"
    assert history.queue.running is None
    assert not any(what.startswith("job a: its turn") for what in history.waits(1.0)), "the rest of A is not queued"
    history.moved(A, OFFLOAD, 2.0)
    assert history.moved(B, LOAD, 3.0) == ["grant b 1"]


def test_a_failed_phase_teaches_no_duration() -> None:
    history = computing(PLAIN, A, (10.0,))
    history.ended(A, 500.0, seconds=500.0, failed=True)
    history.ask(A, 600.0)
    [(_, limit_s)] = history.waits(600.0).values()
    assert limit_s == 100.0


def test_a_job_that_leaves_gives_up_its_request() -> None:
    history = computing(PLAIN)
    history.ask(B, 1.0)
    history.ask(C, 2.0)
    assert history.leave(B, 3.0) == []
    assert history.ended(A, 10.0) == ["offload a"]
    assert history.moved(A, OFFLOAD, 12.0) == ["load c"]


def test_a_job_that_leaves_gives_up_its_lease_and_its_place_on_the_devices() -> None:
    history = computing(PLAIN)
    history.ask(B, 1.0)
    assert history.leave(A, 3.0) == ["load b"]
    assert history.queue.resident is None
    assert history.ended(A, 4.0) == []
    assert history.queue.num_ignored == 1


def test_a_resident_job_that_leaves_needs_no_offload_later() -> None:
    history = computing(PLAIN)
    history.ended(A, 10.0)
    assert history.leave(A, 11.0) == []
    assert history.ask(B, 12.0) == ["load b"]


def test_a_job_that_leaves_while_it_is_loaded_frees_the_group() -> None:
    history = computing(PLAIN)
    history.ask(B, 1.0)
    history.ask(C, 2.0)
    history.ended(A, 10.0)
    history.moved(A, OFFLOAD, 12.0)
    assert history.leave(B, 13.0) == ["load c"]
    assert history.moved(B, LOAD, 14.0) == [], "nothing of it is awaited any more"
    assert history.queue.num_ignored == 1
    assert history.moved(C, LOAD, 16.0) == ["grant c 1"]


def test_a_job_that_leaves_before_it_is_loaded_lets_the_offload_finish() -> None:
    history = computing(PLAIN)
    history.ask(B, 1.0)
    history.ended(A, 10.0)
    assert history.leave(B, 11.0) == []
    assert list(history.waits(11.0)) == ["job a: offload of a on group g0"]
    assert history.ask(C, 11.5) == []
    assert history.ask(A, 11.6) == []
    assert history.moved(A, OFFLOAD, 12.0) == ["load c"]


def test_an_offload_is_over_when_its_job_leaves() -> None:
    history = computing(PLAIN)
    history.ask(B, 1.0)
    history.ended(A, 10.0)
    assert history.leave(C, 10.5) == []
    assert history.leave(A, 11.0) == ["load b"]
    both = computing(PLAIN)
    both.ask(B, 1.0)
    both.ended(A, 10.0)
    both.ask(C, 10.0)
    both.leave(B, 11.0)
    assert both.leave(A, 11.0) == ["load c"]


def test_a_lost_node_drops_the_lease_and_what_is_resident_but_no_request() -> None:
    history = computing(PLAIN)
    history.ask(B, 1.0)
    assert history.lose(2.0) == []
    assert (history.queue.running, history.queue.resident) == (None, None)
    assert history.ended(A, 10.0) == []
    assert history.ask(C, 11.0) == []
    assert history.tick(12.0) == []
    assert history.ask(A, 13.0) == [], "A asks for its phase again"
    assert history.restore(20.0) == ["load b"]


@pytest.mark.parametrize("has_offloaded", [False, True])
def test_a_lost_node_interrupts_a_switch_and_the_request_keeps_its_age(has_offloaded: bool) -> None:
    history = computing(PLAIN)
    history.ask(B, 1.0)
    history.ended(A, 10.0)
    if has_offloaded:
        history.moved(A, OFFLOAD, 11.0)
    history.lose(12.0)
    assert history.waits(12.0)["job b: its turn on group g0; a node is lost"][0] == 1.0
    history.ask(C, 13.0)
    assert history.restore(20.0) == ["load b"]


def test_reports_that_fit_nothing_are_counted_and_change_nothing() -> None:
    history = computing(PLAIN)
    history.ask(B, 1.0)
    assert history.ask(A, 2.0) == [], "A computes"
    assert history.ask(B, 2.0) == [], "B waits already"
    assert history.ask(C, 2.0, ()) == [], "nothing to run"
    assert history.ended(B, 3.0) == []
    assert history.moved(A, LOAD, 3.0) == []
    assert history.moved(B, PREFETCH, 3.0) == []
    assert history.queue.num_ignored == 6
    history.ended(A, 10.0)
    assert history.ended(A, 10.0) == []
    assert history.ask(B, 10.0) == [], "B is being loaded"
    assert history.moved(B, LOAD, 11.0) == []
    assert history.moved(B, OFFLOAD, 11.0) == []
    assert history.queue.num_ignored == 10
    assert history.leave(JobId("unknown"), 11.0) == []
    assert history.moved(A, OFFLOAD, 12.0) == ["load b"]


def test_an_overdue_request_comes_first_then_the_ratio_decides_again() -> None:
    history = computing(ClusterRules(transfers=SETUP, prefetch=False, max_wait_s=50.0), A, (60.0,))
    history.ask(B, 1.0, (1000.0,))
    history.ask(C, 55.0, (1.0,))
    history.ended(A, 60.0)
    assert history.moved(A, OFFLOAD, 61.0) == ["load b"]


def test_measured_transfers_change_the_choice() -> None:
    """C has been expensive to load, B has not, so B comes first although C has waited a little longer."""
    history = History(PLAIN)
    now = 0.0
    for job, seconds in ((B, 1.0), (C, 500.0), (A, 1.0)):
        history.ask(job, now)
        if history.queue.resident is not None:
            history.moved(history.queue.resident, OFFLOAD, now)
        now += seconds
        history.moved(job, LOAD, now, seconds=seconds)
        if job is not A:
            history.ended(job, now)
    history.ask(C, now)
    history.ask(B, now + 2.0)
    history.ended(A, now + 10.0)
    assert history.moved(A, OFFLOAD, now + 11.0) == ["load b"]


def test_every_wait_has_a_name_a_start_and_a_limit() -> None:
    history = computing(PLAIN, A, (20.0,))
    history.ask(B, 1.0)
    assert history.waits(2.0) == {
        "job a: its operations on group g0": (0.0, 200.0),
        "job b: its turn on group g0; a computes": (1.0, 3600.0 + 10 * (5.0 + 20.0 + 5.0 + 5.0 + 10.0)),
    }
    history.ask(C, 10.0)
    history.ended(A, 20.0)
    assert history.waits(20.0)["job b: offload of a on group g0"] == (20.0, 60.0)
    assert "job c: its turn on group g0; a is moved out" in history.waits(20.0)
    history.moved(A, OFFLOAD, 22.0)
    assert history.waits(22.0)["job b: load of b on group g0"] == (22.0, 60.0)
    assert "job c: its turn on group g0; b is moved in" in history.waits(22.0)


def test_a_lease_that_never_ends_is_a_wait_that_passes_its_limit_and_the_job_can_be_ended() -> None:
    history = computing(PLAIN, A, (20.0,))
    history.ask(B, 1.0)
    [wait] = [wait for wait in history.queue.waits(1e6) if "operations" in wait.what]
    assert (wait.what, wait.since, wait.until) == ("job a: its operations on group g0", 0.0, 200.0)
    assert history.leave(A, 1e6) == ["load b"]


def test_a_lost_transfer_is_a_wait_that_passes_its_limit_and_a_restart_of_the_group_ends_it() -> None:
    history = computing(PLAIN)
    history.ask(B, 1.0)
    history.ended(A, 10.0)
    [wait] = [wait for wait in history.queue.waits(500.0) if "offload" in wait.what]
    assert wait.until == 70.0
    history.lose(500.0)
    assert history.restore(500.0) == ["load b"]
