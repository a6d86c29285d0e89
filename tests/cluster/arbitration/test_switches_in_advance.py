"""While nobody waits, the state of the job that is expected to ask first moves."""

from __future__ import annotations

from cluster.arbitration.group_histories import LOAD, OFFLOAD, PREFETCH, SETUP, A, B, C, History, computing
from tailrace.cluster.arbitration.expected import ExpectedPhase
from tailrace.cluster.arbitration.setup_costs import JobState
from tailrace.cluster.ids import TenantId
from tailrace.cluster.settings import ClusterRules

PLAIN = ClusterRules(transfers=SETUP, prefetch=False)


def idle_after_a(**asks_at: float) -> tuple[History, list[str]]:
    """A has computed until 10, and nobody waits."""
    history = computing(PLAIN)
    history.expect(**asks_at)
    return history, history.ended(A, 10.0)


def test_the_state_of_the_job_that_will_ask_first_moves_and_its_lease_begins_at_once() -> None:
    history, commands = idle_after_a(a=60.0, b=30.0, c=40.0)
    assert commands == ["offload a"]
    assert history.waits(11.0) == {"job a: offload of a on group g0": (10.0, 60.0)}
    assert history.moved(A, OFFLOAD, 15.0) == ["load b"]
    assert history.moved(B, LOAD, 20.0) == []
    assert history.queue.is_idle
    assert history.ask(B, 31.0) == ["grant b 1"]


def test_nothing_moves_if_the_resident_job_asks_first_or_nothing_is_expected() -> None:
    for asks_at in ({"a": 20.0, "b": 30.0}, {"a": 30.0, "b": 30.0}, {}):
        history, commands = idle_after_a(**asks_at)
        assert commands == []
        assert history.queue.is_idle


def test_a_job_that_is_far_too_late_is_not_waited_for() -> None:
    assert idle_after_a(a=50.0, b=-90.0)[1] == [], "given up at 10"
    assert idle_after_a(a=50.0, b=-89.0)[1] == ["offload a"]


def test_whoever_waits_comes_before_whoever_is_expected() -> None:
    history = computing(PLAIN)
    history.ask(C, 5.0)
    history.expect(a=60.0, b=30.0)
    assert history.ended(A, 10.0) == ["offload a"]
    assert history.moved(A, OFFLOAD, 15.0) == ["load c"]


def test_who_asks_during_the_offload_is_loaded_next_also_the_job_that_goes_out() -> None:
    for job in (A, C):
        history, _ = idle_after_a(a=60.0, b=30.0)
        assert history.ask(job, 12.0) == []
        assert history.moved(A, OFFLOAD, 15.0) == [f"load {job}"]
        assert history.moved(job, LOAD, 20.0) == [f"grant {job} 1"]


def test_who_asks_during_the_load_waits_until_it_is_over() -> None:
    history, _ = idle_after_a(a=60.0, b=30.0)
    history.moved(A, OFFLOAD, 15.0)
    assert history.ask(C, 16.0) == []
    assert history.moved(B, LOAD, 20.0) == ["offload b"]
    asked, _ = idle_after_a(a=60.0, b=30.0)
    asked.moved(A, OFFLOAD, 15.0)
    assert asked.ask(B, 16.0) == []
    assert asked.moved(B, LOAD, 20.0) == ["grant b 1"]


def test_the_expected_job_can_leave_during_the_switch() -> None:
    history, _ = idle_after_a(a=60.0, b=30.0, c=40.0)
    assert history.leave(B, 12.0) == []
    assert history.moved(A, OFFLOAD, 15.0) == ["load c"]
    assert history.leave(C, 16.0) == ["load a"]
    assert history.moved(C, LOAD, 20.0) == []
    assert history.queue.num_ignored == 1, "a late report"
    assert history.moved(A, LOAD, 21.0) == []
    assert history.queue.resident == A


def test_the_resident_job_can_leave_while_its_state_moves_out() -> None:
    history, _ = idle_after_a(a=60.0, b=30.0)
    assert history.leave(A, 12.0) == ["load b"]


def test_a_lost_node_ends_a_switch_in_advance() -> None:
    history, _ = idle_after_a(a=60.0, b=30.0)
    history.lose(12.0)
    assert history.restore(13.0) == []
    assert history.queue.is_idle


def test_the_expected_job_s_tenant_pays_for_the_switch_in_advance() -> None:
    """Of two tenants whose phases take 10 s alike, the one with 30 s of switches in advance comes later."""
    history = History(PLAIN)
    history.ask(A, -5.0, tenant="ta")
    history.moved(A, LOAD, 0.0)
    phase = ExpectedPhase(owner=JobState(B), tenant=TenantId("tb"), asks_at=30.0, given_up_at=99.0)
    history.queue.expect({}, [phase])
    history.ended(A, 10.0)
    history.moved(A, OFFLOAD, 25.0)
    history.moved(B, LOAD, 40.0)
    history.ask(B, 40.0, tenant="tb")
    history.ask(A, 49.0, tenant="ta")
    history.ask(C, 49.0, tenant="tb")
    assert history.ended(B, 50.0) == ["offload b"]
    assert history.moved(B, OFFLOAD, 50.0) == ["load a"]


def test_the_state_of_the_expected_job_is_prefetched_while_another_computes_until_somebody_waits() -> None:
    history = computing(ClusterRules(transfers=SETUP))
    history.expect(b=30.0, c=40.0)
    assert history.tick(1.0) == ["prefetch b"]
    assert history.tick(2.0) == []
    assert history.ask(C, 3.0) == ["prefetch c"]
    assert history.moved(B, PREFETCH, 4.0) == []
    assert history.ended(A, 10.0) == ["offload a"]
    assert history.moved(A, OFFLOAD, 15.0) == ["load c"]
