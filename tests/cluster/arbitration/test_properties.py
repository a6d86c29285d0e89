"""Properties 4, 5 and 10 of specification 4.6, over random closed systems and random histories with faults."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.arbitration.closed_loop import ClosedLoop, SerialJob
from cluster.arbitration.group_histories import LOAD, OFFLOAD, PREFETCH, History
from tailrace.cluster import commands as do
from tailrace.cluster.ids import JobId, TenantId
from tailrace.cluster.settings import ClusterRules, Grain, Ratio, Transfers

SECONDS = st.integers(0, 40).map(float)
JOBS = st.builds(
    SerialJob,
    id=st.just(JobId("")),
    operations_s=st.lists(st.integers(1, 60).map(float), min_size=1, max_size=3).map(tuple),
    think_s=SECONDS,
    tenant=st.sampled_from([TenantId("t"), TenantId("u")]),
    offload_s=SECONDS,
    load_s=SECONDS,
    first_at=SECONDS,
    slack_s=SECONDS,
    foretold_late_s=st.sampled_from([None, -20.0, 0.0, 0.0, 30.0]),
)
RULES = st.builds(
    ClusterRules,
    ratio=st.sampled_from(Ratio),
    grain=st.sampled_from(Grain),
    hold_s=st.sampled_from([0.0, 5.0, 30.0]),
    prefetch=st.booleans(),
    max_wait_s=st.sampled_from([0.0, 20.0, 150.0]),
    tenants=st.sampled_from([(), ((TenantId("t"), 5.0),)]),
    transfers=st.builds(Transfers, fixed_s=SECONDS),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(JOBS, min_size=1, max_size=5), RULES, st.integers(0, 1000))
def test_no_request_starves_and_the_bound_of_the_docstring_holds(
    jobs: list[SerialJob], rules: ClusterRules, critical: int
) -> None:
    """Properties 4 and 5. The closed loop checks with every grant that one job computes, and that it is resident."""
    loop = ClosedLoop(_renamed(jobs), rules)
    loop.latest_starts = {JobId("elsewhere"): float(critical)}
    loop.run(until=2000.0)
    switch_s = max(job.offload_s for job in jobs) + max(job.load_s for job in jobs)
    longest_s = max(max(job.operations_s) if rules.grain is Grain.OPERATION else sum(job.operations_s) for job in jobs)
    turn_s = max(switch_s + longest_s, rules.hold_s)
    bound_s = max(rules.max_wait_s, switch_s) + (len(jobs) - 1) * turn_s + switch_s
    for job in loop.jobs.values():
        assert all(waited_s <= bound_s + 1e-6 for waited_s in job.waits)
        assert job.waits, "nobody is forgotten"
        is_waiting = loop.computing != job.id and job.asked_at > (job.phases_ended or [-1.0])[-1]
        assert not is_waiting or loop.now - job.asked_at <= bound_s + 1e-6
    assert loop.queue.num_ignored == 0


def _renamed(jobs: list[SerialJob]) -> list[SerialJob]:
    return [replace(job, id=JobId(f"j{number}"), phases_ended=[], waits=[]) for number, job in enumerate(jobs)]


@settings(max_examples=60, deadline=None)
@given(st.lists(JOBS, min_size=1, max_size=4), RULES)
def test_the_same_facts_give_the_same_commands(jobs: list[SerialJob], rules: ClusterRules) -> None:
    first, second = (ClosedLoop(_renamed(jobs), rules) for _ in range(2))
    first.run(until=500.0)
    second.run(until=500.0)
    assert first.sent == second.sent


STEPS = st.lists(
    st.tuples(st.integers(0, 11), st.integers(0, 3), st.sampled_from([0.0, 0.5, 7.0, 40.0])), min_size=1, max_size=60
)


@settings(max_examples=400, deadline=None)
@given(STEPS, RULES)
def test_any_history_of_facts_and_false_reports_keeps_the_invariants_and_ends_well(
    steps: list[tuple[int, int, float]], rules: ClusterRules
) -> None:
    """Property 10. ``History`` checks the invariants after each fact; in the end, whoever waits gets its turn."""
    history, now = History(rules), 0.0
    for kind, number, seconds in steps:
        now += seconds
        _tell(history, kind, JobId(f"j{number}"), now, seconds)
    history.restore(now)
    waiting = [wait for wait in history.queue.waits(now) if "its turn" in wait.what]
    for _ in range(6 * (len(waiting) + 2)):
        now += 1.0
        _answer(history, now)
    assert history.queue.is_idle, history.waits(now)


def _tell(history: History, kind: int, job: JobId, now: float, seconds: float) -> None:
    match kind:
        case 0 | 1 | 2:
            history.ask(job, now, (seconds, 3.0), tenant=f"t{len(job) + kind % 2}", slack_s=seconds)
        case 3:
            history.ended(job, now, seconds=seconds, failed=seconds == 7.0, next_in_s=None if seconds else 0.0)
        case 4:
            history.moved(job, (OFFLOAD, LOAD, PREFETCH)[int(seconds) % 3], now, seconds=seconds)
        case 5:
            history.leave(job, now)
        case 6 if seconds == 40.0:
            history.lose(now)
        case 7:
            history.restore(now)
        case 8:
            history.tick(now)
        case _:
            _answer(history, now)


def _answer(history: History, now: float) -> None:
    """Do what the group itself waits for: end a transfer, an operation or a hold."""
    [first, *_] = [*(wait.what for wait in history.queue.waits(now)), ""]
    if ": its operations" in first and history.queue.running is not None:
        history.ended(history.queue.running, now)
    for direction in (OFFLOAD, LOAD):
        if f": {direction} of " in first:
            moving = first.split(f": {direction} of ")[1].split(" on group ")[0]
            history.moved(JobId(moving), direction, now)
    if (wake_at := history.queue.wake_at()) is not None:
        history.tick(max(now, wake_at))


def test_without_the_limit_a_long_phase_could_wait_for_ever_behind_short_ones_that_delay_nobody() -> None:
    """A third job always must start in 30 s, so only short phases fit before it. The stated bound ends this."""

    def longest_wait_s(max_wait_s: float) -> float:
        short = [SerialJob(id=JobId(f"s{n}"), operations_s=(10.0,), think_s=1.0, slack_s=1e6) for n in range(2)]
        long = SerialJob(id=JobId("long"), operations_s=(100.0,), think_s=1.0, slack_s=1e6, first_at=5.0)
        loop = ClosedLoop([*short, long], ClusterRules(max_wait_s=max_wait_s, transfers=Transfers()))
        for second in range(3000):
            loop.latest_starts = {JobId("third"): second + 30.0}
            loop.run(until=float(second))
        return max([*long.waits, loop.now - long.asked_at if not long.waits else 0.0])

    assert longest_wait_s(1e9) > 2900.0
    assert 200.0 < longest_wait_s(200.0) <= 200.0 + 2 * 100.0


def test_with_a_stream_of_short_jobs_the_long_one_waits_no_longer_than_the_bound() -> None:
    short = [SerialJob(id=JobId(f"s{n}"), operations_s=(5.0,), think_s=0.5, load_s=1.0) for n in range(4)]
    long = SerialJob(id=JobId("z"), operations_s=(400.0,), think_s=10.0, load_s=1.0)
    loop = ClosedLoop([*short, long], ClusterRules(max_wait_s=60.0))
    loop.run(until=20_000.0)
    assert len(long.waits) > 20
    assert max(long.waits) <= 60.0 + 4 * 6.0 + 1.0, "the other four are short"


def test_every_lease_is_asked_for_and_answers_in_the_jobs_own_order() -> None:
    """Property 4: three operations of different lengths come in their order, whoever computes in between."""
    jobs = [SerialJob(id=JobId(f"j{n}"), operations_s=(3.0, 5.0, 7.0), think_s=2.0, load_s=1.0) for n in range(3)]
    loop = ClosedLoop(jobs, ClusterRules(grain=Grain.OPERATION))
    loop.run(until=600.0)
    for job in jobs:
        grants = [each for each in loop.sent if isinstance(each, do.GrantLease) and each.job == job.id]
        assert len(grants) == len(job.waits)
        phases = [done for done, _ in zip(loop.operations[job.id], grants, strict=False)]
        assert phases == [(3.0, 5.0, 7.0)[number % 3] for number in range(len(phases))]
