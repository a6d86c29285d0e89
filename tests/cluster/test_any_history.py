"""The properties of specification 4.6, over random histories with faults. Each test has the number of its property.

     1  placement: formerly free windows, disjoint, exact release
     2  the shift is the least one                           also planning/test_fitting.py
     3  pruning rejects no feasible placement                also planning/test_fitting.py, planning/test_ranking.py
     4  one operation per group, of the resident job with the parts of its state that it needs, in the job's order
     5  no starvation; equal S: first come; equal W: smaller S; same job at ties
                                                             also arbitration/test_properties.py, test_ratios.py
     6  bytes of the state: not decided here. That the state of all jobs of a group fits is asserted after each event.
     7  equal losses alone and shared: needs a real run
     8  what jobs pay is what the cluster was busy or reserved
     9  the duty cap is never exceeded by admission
    10  a failed operation releases the group, the job's queue fails fast, the others proceed

The faults are: lost nodes, crashed jobs, phases that fail or take ten times as long, leases and transfers that never
answer, and reports that come twice or late. ``scheduler.check()`` runs after each event. ``make histories`` draws more.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cluster.arbitration.group_histories import LOAD, OFFLOAD, A, computing
from cluster.random_cluster import History, World
from cluster.random_histories import alike_histories, equal_job_histories, histories, shared_histories
from cluster.random_simulations import Simulation, occupied_s, simulations
from cluster.watched_timetable import least_shift_by_trying, watched
from tailrace.cluster import commands as do
from tailrace.cluster import events as ev
from tailrace.cluster import journal
from tailrace.cluster.admission.order import in_order
from tailrace.cluster.groups.placement import choose, slot_of
from tailrace.cluster.ids import JobId
from tailrace.cluster.jobs.record import Stage
from tailrace.cluster.planning.fitting import Footprint
from tailrace.cluster.planning.ranking import best_place, has_room
from tailrace.cluster.scheduler import Scheduler
from tailrace.cluster.settings import ClusterRules, Grain, Order, Policy, Ratio, Transfers

NUM_HISTORIES = max(1, round(200 * float(os.environ.get("TAILRACE_HISTORIES", "0.5"))))
"""Half of them if nothing is said, so that all tests end within eight minutes on two cores."""
SHRINKS = os.environ.get("TAILRACE_SHRINKS", "1") == "1"
"""Whether somebody wants to see a short history, or only whether there is one that fails."""
many = settings(
    max_examples=NUM_HISTORIES,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink] if SHRINKS else [Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@many
@given(histories())
def test_1_segments_lie_in_free_windows_windows_stay_disjoint_and_release_restores_them(history: History) -> None:
    world = World(history)
    timetable = watched(world)  # compares after each reservation and each release
    world.run(lambda world: timetable.check())
    assert all(timetable.num_jobs(group.id) == 0 for group in history.started.groups)
    assert all(timetable.residents(group.id) == [] for group in history.started.groups)


@many
@given(histories())
def test_2_the_shift_of_every_placement_is_the_least_feasible_one(history: History) -> None:
    world = World(history)
    timetable = watched(world)
    world.run()
    rules = world.rules
    planned = {
        (each.at, each.reservation.job, each.reservation.group, each.reservation.placement.start): each
        for each in reversed(timetable.made)
    }
    for entry in world.entries:
        for command in entry.commands:
            if isinstance(command, do.Place | do.Move):
                group = command.group if isinstance(command, do.Place) else command.target
                first = slot_of(entry.now, rules)
                shift = round((entry.now + command.shift_s) / rules.slot_s) - first
                found = planned.get((entry.now, command.job, group, first + shift))
                if found is None:
                    assert command.shift_s == 0.0, "no slots are reserved"
                else:
                    footprint = found.reservation.placement.footprint
                    assert shift == least_shift_by_trying(footprint, first, found.beside)


@many
@given(histories())
def test_3_pruning_never_rejects_a_feasible_placement(history: History) -> None:
    """Whoever waits or runs: whenever the plan has changed, a place for it is found exactly if there is one."""
    world = World(history)
    timetable = watched(world)
    seen = [-1]

    def look(world: World) -> None:
        rules, rooms = world.rules, world.scheduler.rooms
        version = len(timetable.made) + len(world.down) * 1000
        if version == seen[0]:
            return
        seen[0] = version
        first = slot_of(world.now, rules)
        for trace in {job.trace for job in rooms.jobs.every() if job.trace is not None}:
            footprint = Footprint.of(trace, rules.slot_s)
            found = best_place(timetable, footprint, list(rooms.groups.records), first, rules)
            feasible = {
                group: shift
                for group in rooms.groups.records
                if has_room(timetable, group, footprint, rules)
                and (shift := least_shift_by_trying(footprint, first, timetable.taken[group].values())) is not None
            }
            assert (found is None) == (not feasible)
            assert found is None or found.shift == feasible[found.group]

    world.run(look)


@many
@given(histories())
def test_4_one_operation_per_group_the_resident_job_computes_and_its_operations_keep_their_order(
    history: History,
) -> None:
    world = World(history)
    world.run()  # the world asserts it at every lease and transfer
    leases = [
        command.lease for entry in world.entries for command in entry.commands if isinstance(command, do.GrantLease)
    ]
    assert leases == list(range(1, len(leases) + 1))


@many
@given(histories())
def test_5_no_starvation_every_job_comes_to_its_end(history: History) -> None:
    world = World(history)
    world.run()
    assert all(job.is_over for job in world.jobs.values()), world.scheduler.waits(world.now)
    assert not world.scheduler.rooms.jobs.every()
    assert world.scheduler.waits(world.now) == []


@many
@given(st.one_of(histories(has_outages=False), shared_histories()))
def test_5_no_starvation_no_phase_waits_longer_than_the_stated_bound(history: History) -> None:
    """The bound of ``arbitration/group_queue.py``, for jobs that stay on their group while they wait. After each event,
    also for those that wait still."""
    switch_s = 2 * history.transfer_s

    def bound_s(world: World) -> float:
        turn_s = max(switch_s + world.longest_lease_s, world.rules.hold_s)
        return max(world.rules.max_wait_s, switch_s) + (len(history.jobs) - 1) * turn_s + switch_s + 1e-6

    def look(world: World) -> None:
        for job in world.jobs.values():
            if job.group is not None and job.waits_on(job.group) and job.joined_at <= job.asked_at:
                assert world.now - job.asked_at <= bound_s(world)

    world = World(history)
    world.run(look)
    assert all(waited.has_moved or waited.seconds <= bound_s(world) for waited in world.waited)


@many
@given(equal_job_histories())
def test_5_with_equal_service_time_the_first_come_is_first_served(history: History) -> None:
    """Jobs are alike, so all that need a switch take equally long: none overtakes another."""
    switch_s = history.transfer_s * 0.25

    def look(world: World) -> None:
        for command in world.entries[-1].commands:
            if isinstance(command, do.Load):
                chosen = world.jobs[command.job]
                chosen_at = world.now - switch_s  # at the earliest: an offload may have come before
                for other in world.jobs.values():
                    if other.waits_on(command.group) and other.joined_at < chosen_at:
                        assert chosen.asked_at <= other.asked_at, (command, other)

    World(history).run(look)


SECONDS = st.integers(1, 60).map(float)
BY_WAITING = (Ratio.FIRST_COME, Ratio.RESPONSE)
HOW_A_TURN_ENDS = st.sampled_from(["ended", "failed", "left", "lost"])


@many
@given(st.lists(SECONDS, min_size=2, max_size=5), SECONDS, HOW_A_TURN_ENDS, st.sampled_from(BY_WAITING))
def test_5_with_equal_waiting_time_the_smaller_service_time_comes_first(
    executions_s: list[float], switch_s: float, how: str, ratio: Ratio
) -> None:
    """Jobs ask at the same moment, while another computes until it ends, fails, leaves or its node is lost.

    It does not hold for (W + E) / S: if nobody has waited for longer than a switch takes, the longest comes first.
    """
    history = computing(ClusterRules(ratio=ratio, prefetch=False, transfers=Transfers(fixed_s=switch_s)))
    sizes = {JobId(f"j{number}"): seconds for number, seconds in enumerate(executions_s)}
    for job, seconds in sizes.items():
        history.ask(job, 1.0, (seconds,))
    if how == "lost":
        history.lose(5.0)
        commands = history.restore(6.0)
    elif how == "left":
        commands = history.leave(A, 5.0)
    else:
        history.ended(A, 5.0, failed=how == "failed")
        commands = history.moved(A, OFFLOAD, 6.0)
    expected = min(sizes, key=lambda job: (sizes[job], job))
    assert commands == [f"load {expected}"]
    assert history.moved(expected, LOAD, 8.0) == [f"grant {expected} 1"]


@many
@given(st.lists(SECONDS, min_size=1, max_size=4), SECONDS, SECONDS, st.sampled_from(Ratio))
def test_5_at_a_tie_the_job_that_is_resident_comes_first(
    others_s: list[float], rest_s: float, switch_s: float, ratio: Ratio
) -> None:
    """All ask at the same moment, so nobody has waited."""
    rules = ClusterRules(ratio=ratio, grain=Grain.OPERATION, prefetch=False, transfers=Transfers(fixed_s=switch_s))
    history = computing(rules, A, (10.0, rest_s))
    history.ended(A, 10.0, next_in_s=0.0)
    for number, seconds in enumerate(others_s):
        assert history.ask(JobId(f"0{number}"), 10.0, (seconds,)) == []
    assert history.ask(A, 10.0, (rest_s,)) == ["grant a 1"]


@many
@given(simulations())
def test_8_what_jobs_pay_is_what_the_cluster_was_busy_or_reserved(simulation: Simulation) -> None:
    driver, entries = simulation.run()
    occupied = occupied_s(entries, simulation)
    for group in driver.world.groups.values():
        meter = group.meter
        assert sum(meter.billed_s.values()) == pytest.approx(meter.busy_s + meter.reserved_s, abs=1e-6)
        assert meter.busy_s + meter.reserved_s == pytest.approx(occupied[group.id], abs=1e-6)
        spans = sorted((span.start, span.end) for span in group.spans if span.kind != "prefetch")
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(spans))
        assert meter.busy_s == pytest.approx(sum(end - start for start, end in spans), abs=1e-6)


@many
@given(histories())
def test_9_the_duty_cap_is_never_exceeded_by_admission(history: History) -> None:
    rules = history.started.rules

    def look(world: World) -> None:
        for command in world.entries[-1].commands:
            if isinstance(command, do.Place | do.Move):
                name = command.group if isinstance(command, do.Place) else command.target
                group = world.scheduler.rooms.groups.named(name)
                assert len(group.jobs) <= rules.max_jobs_per_group
                assert len(group.jobs) <= 1 or group.duty <= rules.max_duty + 1e-6
                assert len(group.jobs) <= 1 or rules.policy is not Policy.ISOLATED

    World(history).run(look)


@many
@given(histories())
def test_10_a_failure_releases_the_group_the_jobs_queue_fails_fast_and_the_others_proceed(history: History) -> None:
    world = World(history)
    rooms, ended = world.scheduler.rooms, set[JobId]()

    def look(world: World) -> None:
        entry = world.entries[-1]
        if isinstance(entry.event, ev.PhaseEnded) and entry.event.failed:
            job = rooms.jobs.find(entry.event.job)
            assert job is None or job.log.phase is None
            assert all(queue.running != entry.event.job for queue in rooms.phases.queues.values())
        if isinstance(entry.event, ev.JobEnded):
            ended.add(entry.event.job)
        assert not any(getattr(command, "job", None) in ended for command in entry.commands)

    world.run(look)
    assert rooms.admission.free_rollout_devices == rooms.admission.num_rollout_devices
    assert all(queue.is_idle for queue in rooms.phases.queues.values())
    assert not any(group.jobs for group in rooms.groups.every())


@many
@given(histories())
def test_a_journal_replays_to_the_same_commands(history: History) -> None:
    world = World(history)
    world.run()
    lines = [journal.encode(entry) for entry in world.entries]
    replayed = journal.replay(journal.decode(line) for line in lines)
    assert replayed.rooms.watch == world.scheduler.rooms.watch


@many
@given(shared_histories())
def test_state_moves_in_advance_only_while_nobody_waits_and_everybody_comes_to_an_end(history: History) -> None:
    world = World(history)

    def look(world: World) -> None:
        for command in world.entries[-1].commands:
            if isinstance(command, do.Offload | do.Load):
                turns = [wait.what for wait in world.scheduler.waits(world.now) if "its turn on" in wait.what]
                assert not turns or not world.scheduler.rooms.phases.queues[command.group].moves_in_advance

    world.run(look)
    assert all(job.is_over for job in world.jobs.values())


@many
@given(simulations())
def test_the_journal_of_a_simulation_replays_to_the_same_commands(simulation: Simulation) -> None:
    _, entries = simulation.run()
    journal.replay(journal.decode(journal.encode(entry)) for entry in entries)


@many
@given(histories())
def test_at_any_moment_every_job_that_waits_is_named(history: History) -> None:
    def look(world: World) -> None:
        told = " ".join(wait.what for wait in world.scheduler.waits(world.now))
        for job in world.scheduler.rooms.jobs.every():
            waits_for_phase = job.log.phase is not None and job.log.phase.lease is None
            if job.stage is Stage.QUEUED or job.displaced is not None or waits_for_phase:
                assert job.id in told, (job, told)

    World(history).run(look)


@many
@given(histories())
def test_the_first_job_in_the_queue_never_waits_for_a_place_that_is_there(history: History) -> None:
    """Also if the place is there only because time has passed: others have waited for a smaller share of it."""
    rules = replace(
        history.started.rules, policy=Policy.PACK, order=Order.FIRST_COME, max_wait_share=0.3, max_duty=1.0,
        max_jobs_per_group=4,
    )  # fmt: skip
    jobs = tuple((at, replace(spec, steps=4 * spec.steps)) for at, spec in history.jobs)
    world = World(replace(history, started=replace(history.started, rules=rules), jobs=jobs))
    rooms = world.scheduler.rooms

    def look(world: World) -> None:
        for job in [*rooms.jobs.displaced(), *in_order(rooms, world.now)][:1]:
            has_devices = job.is_live or job.spec.rollout_devices <= rooms.admission.free_rollout_devices
            groups = rooms.groups.taking(job, rules, world.now)
            assert not has_devices or choose(job, groups, rooms.groups.timetable, rules, world.now) is None, job

    world.run(look)


class Forgetful(Scheduler):
    """Looks for every place as if for the first time."""

    def handle(self, event: ev.Event, *, now: float) -> list[do.Command]:
        self.rooms.admission.searched.clear()
        self.rooms.rearranging.room_searched = ()
        return super().handle(event, now=now)


@many
@given(alike_histories([Policy.PACK, Policy.ISOLATED]))
def test_what_is_remembered_of_searches_changes_no_decision(history: History) -> None:
    """With these policies. With the others a fit may also appear because time passes (``groups/openings.py``)."""
    worlds = [World(history), World(history)]
    worlds[1].scheduler = Forgetful(history.started)
    told = []
    for world in worlds:
        world.run()
        told.append([(each.now, command) for each in world.entries for command in each.commands if _decides(command)])
    assert told[0] == told[1]


def _decides(command: do.Command) -> bool:
    return isinstance(command, do.Place | do.Admit | do.Move | do.Refuse)


@many
@given(histories())
def test_every_lease_and_transfer_in_progress_is_named_with_its_start_and_a_limit(history: History) -> None:
    """So one that never answers can be seen, and from when on it counts as lost."""

    def look(world: World) -> None:
        waits = world.scheduler.waits(world.now)
        for name, since in world.under_way().items():
            [wait] = [wait for wait in waits if name in wait.what]
            assert wait.since == since
            assert since < wait.until < math.inf
        assert all(wait.since <= world.now and wait.limit_s >= 0 for wait in waits)

    World(history).run(look)
