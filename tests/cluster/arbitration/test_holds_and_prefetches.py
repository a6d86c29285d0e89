"""Keeping the group for the next operation of a job, and preparing the next job while one computes."""

from __future__ import annotations

from cluster.arbitration.group_histories import LOAD, OFFLOAD, PREFETCH, SETUP, A, B, C, History, computing
from tailrace.cluster.job_spec import StateBytes
from tailrace.cluster.settings import ClusterRules, Grain, Transfers

HOLD = ClusterRules(transfers=SETUP, prefetch=False, grain=Grain.OPERATION, hold_s=60.0)
AHEAD = ClusterRules(transfers=SETUP)


def test_a_group_is_held_for_a_job_that_will_ask_soon_for_at_most_the_cost_of_a_switch() -> None:
    history = computing(HOLD, A, (1.0, 2.0))
    history.ask(B, 0.5)
    assert history.ended(A, 1.0, next_in_s=3.0) == ["hold a 11.0"]
    assert history.queue.wake_at() == 11.0
    assert list(history.waits(2.0)) == ["job b: its turn on group g0; it is held for a"]
    assert history.ask(C, 3.0) == []
    assert history.ask(A, 4.0, (2.0,)) == ["grant a 1"]
    assert history.queue.wake_at() is None


def test_a_hold_ends_when_its_time_has_come() -> None:
    history = computing(HOLD, A, (1.0, 2.0))
    history.ask(B, 0.5)
    history.ended(A, 1.0, next_in_s=3.0)
    assert history.tick(10.9) == []
    assert history.tick(11.0) == ["offload a"]
    late = computing(HOLD, A, (1.0, 2.0))
    late.ask(B, 0.5)
    late.ended(A, 1.0, next_in_s=3.0)
    assert late.ask(A, 12.0, (200.0,)) == ["offload a"], "too late: it competes with B"


def test_no_hold_for_a_job_that_asks_later_than_a_switch_takes_or_never() -> None:
    for next_in_s in (10.1, None):
        history = computing(HOLD, A, (1.0, 2.0))
        history.ask(B, 0.5)
        assert history.ended(A, 1.0, next_in_s=next_in_s) == ["offload a"]
    history = computing(ClusterRules(transfers=SETUP, grain=Grain.OPERATION, hold_s=2.0), A, (1.0, 2.0))
    assert history.ended(A, 1.0, next_in_s=3.0) == []
    assert history.queue.is_idle


def test_a_group_is_held_between_two_phases_of_a_job_too() -> None:
    """As a one-step job asks for its training at once after its synchronization."""
    history = computing(ClusterRules(transfers=SETUP, prefetch=False, grain=Grain.PHASE, hold_s=60.0))
    history.ask(B, 0.5)
    assert history.ended(A, 10.0, next_in_s=0.0) == ["hold a 20.0"]
    assert history.ask(A, 10.0, (1.0, 2.0)) == ["grant a 2"]
    assert history.ended(A, 13.0, seconds=3.0, next_in_s=10.1) == ["offload a"], "a switch away and back costs less"


def test_without_holds_a_phase_that_follows_at_once_competes_with_those_that_wait() -> None:
    for asked_at, expected in ((10.0, "grant a 1"), (0.5, "offload a")):
        history = computing(ClusterRules(transfers=SETUP, prefetch=False))
        history.ask(B, asked_at)
        assert history.ended(A, 10.0, next_in_s=0.0) == []
        assert history.ask(A, 10.0) == [expected], "at a tie the resident job comes first"


def test_an_overdue_request_ends_holding() -> None:
    rules = ClusterRules(transfers=SETUP, prefetch=False, grain=Grain.OPERATION, hold_s=60.0, max_wait_s=4.0)
    history = computing(rules, A, (1.0, 2.0))
    history.ask(B, 0.0)
    assert history.ended(A, 5.0, next_in_s=3.0) == ["offload a"]
    during = computing(rules, A, (1.0, 2.0))
    during.ask(B, 0.0)
    assert during.ended(A, 1.0, next_in_s=3.0) == ["hold a 11.0"]
    assert during.ask(A, 5.0, (2.0,)) == ["offload a"]


def test_a_hold_ends_when_its_job_leaves_or_a_node_is_lost() -> None:
    history = computing(HOLD, A, (1.0, 2.0))
    history.ask(B, 0.5)
    history.ended(A, 1.0, next_in_s=3.0)
    assert history.leave(A, 2.0) == ["load b"]
    lost = computing(HOLD, A, (1.0, 2.0))
    lost.ended(A, 1.0, next_in_s=3.0)
    lost.lose(2.0)
    assert lost.queue.wake_at() is None


def test_a_held_group_counts_as_used_by_the_tenant() -> None:
    history = History(HOLD)
    history.ask(A, -5.0, (1.0, 2.0), tenant="ta")
    history.moved(A, LOAD, 0.0)
    history.ask(B, 0.0, (8.0,), tenant="tb")
    history.ended(A, 1.0, seconds=1.0, next_in_s=3.0)
    history.ask(A, 10.0, (2.0,), tenant="ta")
    history.ended(A, 12.0, seconds=2.0)
    history.moved(A, OFFLOAD, 12.0)
    history.moved(B, LOAD, 12.0)
    history.ask(A, 13.0, (1.0,), tenant="ta")
    history.ask(C, 14.0, (500.0,), tenant="tb")
    assert history.ended(B, 20.0, seconds=8.0) == ["offload b"]
    assert history.moved(B, OFFLOAD, 21.0) == ["load c"], "tb used 8 s, ta 17 s of which 9 s were held"


def test_the_state_of_the_next_job_is_prefetched_once_while_another_computes() -> None:
    history = computing(AHEAD)
    assert history.ask(B, 1.0) == ["prefetch b"]
    assert history.ask(C, 2.0, (1.0,)) == [], "once per lease"
    assert history.moved(B, PREFETCH, 4.0) == []
    assert history.moved(B, PREFETCH, 4.0) == []
    assert history.queue.num_ignored == 1


def test_a_prefetch_may_follow_the_grant() -> None:
    history = computing(AHEAD)
    history.ask(B, 1.0)
    history.ended(A, 10.0)
    history.ask(C, 11.0)
    history.moved(A, OFFLOAD, 12.0)
    assert history.moved(B, LOAD, 13.0) == ["grant b 1", "prefetch c"]
    history.ended(B, 23.0)
    history.ask(A, 24.0)
    history.moved(B, OFFLOAD, 25.0)
    assert history.moved(C, LOAD, 26.0) == ["grant c 1", "prefetch a"]


def test_a_prefetched_job_is_not_prefetched_again_with_the_next_lease() -> None:
    rules = ClusterRules(transfers=SETUP, grain=Grain.OPERATION, hold_s=60.0)
    history = computing(rules, A, (1.0, 2.0))
    assert history.ask(B, 0.5) == ["prefetch b"]
    history.ended(A, 1.0, next_in_s=0.0)
    assert history.ask(A, 1.0, (2.0,)) == ["grant a 1"]
    assert history.queue.resident == A


def test_without_the_rule_nothing_is_prefetched() -> None:
    assert computing(ClusterRules(transfers=SETUP, prefetch=False)).ask(B, 1.0) == []


def test_what_a_prefetch_did_makes_its_job_cheaper_to_choose() -> None:
    """C's phase is shorter than B's by 1 s, and both have waited alike."""
    for seconds, expected in ((0.5, "load c"), (3.0, "load b")):
        history = computing(AHEAD)
        assert history.ask(B, 1.0, (10.0,)) == ["prefetch b"]
        history.moved(B, PREFETCH, 4.0, seconds=seconds)
        history.ask(C, 1.0, (9.0,))
        history.ended(A, 10.0)
        assert history.moved(A, OFFLOAD, 15.0) == [expected]


def test_a_prefetch_is_worth_nothing_once_another_job_was_loaded() -> None:
    history = computing(AHEAD)
    history.ask(B, 1.0, (10.0,))
    history.moved(B, PREFETCH, 4.0, seconds=1.0)
    history.ask(C, 1.0, (1.0,))
    history.ended(A, 10.0)
    assert history.moved(A, OFFLOAD, 15.0) == ["load c"]
    assert history.moved(C, LOAD, 20.0) == ["grant c 1", "prefetch b"]


def test_a_prefetch_that_never_ends_hides_no_more_than_the_load() -> None:
    history = computing(AHEAD)
    history.ask(B, 1.0)
    history.ended(A, 500.0)
    history.moved(A, OFFLOAD, 505.0)
    history.moved(B, LOAD, 506.0, seconds=1.0)
    assert history.queue.costs.load_s(B, StateBytes()) == 6.0


def test_a_load_after_a_prefetch_teaches_the_time_of_the_whole_load() -> None:
    history = computing(AHEAD)
    history.ask(B, 1.0)
    history.moved(B, PREFETCH, 4.0, seconds=3.0)
    history.ended(A, 10.0)
    history.moved(A, OFFLOAD, 15.0)
    history.moved(B, LOAD, 17.0, seconds=2.0)
    assert history.queue.costs.load_s(B, StateBytes()) == 5.0


def test_a_prefetch_in_progress_counts_for_the_time_that_it_has_taken() -> None:
    history = computing(AHEAD)
    history.ask(B, 6.0)
    history.ended(A, 10.0)
    history.moved(A, OFFLOAD, 10.0)
    history.moved(B, LOAD, 11.0, seconds=1.0)
    assert history.queue.costs.load_s(B, StateBytes()) == 5.0, "4 s of the prefetch and 1 s of the load"


def test_a_prefetch_that_never_ends_is_a_named_wait_until_its_job_is_loaded() -> None:
    rules = ClusterRules(transfers=Transfers(fixed_s=7.0))
    history = computing(rules)
    history.ask(B, 1.0)
    name = "job b: prefetch of b on group g0"
    assert history.waits(100.0)[name] == (1.0, 70.0)
    history.ended(A, 100.0)
    history.moved(A, OFFLOAD, 107.0)
    assert name in history.waits(108.0)
    history.moved(B, LOAD, 114.0)
    assert list(history.waits(115.0)) == ["job b: its operations on group g0"]
    done = computing(rules)
    done.ask(B, 1.0)
    done.moved(B, PREFETCH, 3.0)
    assert name not in done.waits(4.0)
