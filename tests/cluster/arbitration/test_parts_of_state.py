"""Only the parts of a job's state that are needed move."""

from __future__ import annotations

import pytest

from cluster.arbitration.group_histories import G0, A, B
from tailrace.cluster import commands as do
from tailrace.cluster.arbitration.expected import ExpectedPhase
from tailrace.cluster.arbitration.group_queue import GroupQueue
from tailrace.cluster.arbitration.requests import PhaseRequest
from tailrace.cluster.arbitration.setup_costs import JobState, SetupCosts
from tailrace.cluster.events import Direction, TransferMeasured
from tailrace.cluster.ids import JobId, TenantId
from tailrace.cluster.job_spec import ALL_PARTS, JobSpec, Parts, StateBytes, StatePart
from tailrace.cluster.settings import ClusterRules, Transfers

WEIGHTS, GRADIENTS, OPTIMIZER = StatePart
REST = (GRADIENTS, OPTIMIZER)
STATE = StateBytes(weights=10, gradients=10, optimizer=60)
RULES = ClusterRules(transfers=Transfers(bytes_per_s=10.0))
"""All parts take 8 s, the weights 1 s."""


class Told:
    """A queue whose transfers take no time of anybody else."""

    def __init__(self, rules: ClusterRules = RULES) -> None:
        self.queue = GroupQueue(G0, rules)

    def ask(self, job: JobId, now: float, parts: Parts, later: Parts = ()) -> list[do.Command]:
        request = PhaseRequest(
            job=job,
            tenant=TenantId("t"),
            asked_at=now,
            operations_s=(10.0,),
            state=STATE,
            parts=parts,
            later_parts=later,
        )
        return self.checked(self.queue.ask(request, now))

    def expect(self, job: JobId, parts: Parts, later: Parts, asks_at: float) -> None:
        owner = JobState(job, STATE, parts)
        phase = ExpectedPhase(
            owner=owner, later_parts=later, tenant=TenantId("t"), asks_at=asks_at, given_up_at=asks_at + 100
        )
        self.queue.expect({}, [phase])

    def done(self, command: do.Command, now: float, seconds: float = 1.0) -> list[do.Command]:
        assert isinstance(command, do.Offload | do.Load | do.Prefetch)
        direction = Direction(type(command).__name__.lower())
        report = TransferMeasured(
            job=command.job, group=G0, transfer=command.transfer, direction=direction, num_bytes=10, seconds=seconds
        )
        return self.checked(self.queue.transferred(report, now))

    def ended(self, job: JobId, now: float) -> list[do.Command]:
        return self.checked(self.queue.ended(job, 10.0, False, None, now))

    def checked(self, commands: list[do.Command]) -> list[do.Command]:
        self.queue.check()
        return commands


def parts_of(commands: list[do.Command]) -> list[tuple[str, Parts]]:
    return [(type(each).__name__, each.parts) for each in commands if isinstance(each, do.Load | do.Prefetch)]


def computing(parts: Parts, later: Parts = ()) -> Told:
    """A has computed with these parts since 0."""
    told = Told()
    [load] = told.ask(A, -1.0, parts, later)
    assert isinstance(load, do.Load)
    assert load.parts == parts
    granted, *_ = told.done(load, 0.0)
    assert isinstance(granted, do.GrantLease)
    return told


def test_a_phase_waits_only_for_the_parts_that_it_asked_for_and_the_next_one_for_what_is_missing() -> None:
    told = computing((WEIGHTS,))
    told.ended(A, 10.0)
    [load] = told.ask(A, 11.0, ALL_PARTS)
    assert parts_of([load]) == [("Load", REST)], "and nothing goes out"
    assert isinstance(told.done(load, 18.0)[0], do.GrantLease)
    told.ended(A, 28.0)
    assert isinstance(told.ask(A, 29.0, (WEIGHTS,))[0], do.GrantLease), "all is there"


def test_what_later_phases_of_the_job_need_comes_while_it_computes() -> None:
    told = Told()
    [load] = told.ask(A, -1.0, (WEIGHTS,), ALL_PARTS)
    _, prefetch = told.done(load, 0.0)
    assert parts_of([prefetch]) == [("Prefetch", REST)]
    told.done(prefetch, 7.0, seconds=7.0)
    told.ended(A, 10.0)
    [load] = told.ask(A, 10.0, ALL_PARTS, ALL_PARTS)
    assert told.queue.costs.load_s(A, STATE, REST) == 7.0
    told.done(load, 10.0, seconds=0.0)
    assert told.queue.costs.load_s(A, STATE, REST) == 7.0, "the prefetch did all of it"


def test_another_job_s_state_goes_out_with_all_parts_before_the_weights_come_in() -> None:
    told = computing(ALL_PARTS)
    told.ended(A, 10.0)
    [offload] = told.ask(B, 11.0, (WEIGHTS,))
    assert isinstance(offload, do.Offload)
    [load] = told.done(offload, 12.0)
    assert parts_of([load]) == [("Load", (WEIGHTS,))]


def test_while_nobody_waits_first_the_next_phase_s_parts_move_then_those_of_later_ones() -> None:
    told = computing(ALL_PARTS)
    told.expect(B, (WEIGHTS,), ALL_PARTS, asks_at=60.0)
    [offload] = told.ended(A, 10.0)
    [weights] = told.done(offload, 18.0)
    assert parts_of([weights]) == [("Load", (WEIGHTS,))]
    [rest] = told.done(weights, 19.0)
    assert parts_of([rest]) == [("Load", REST)]
    assert told.done(rest, 26.0) == []
    assert isinstance(told.ask(B, 60.0, (WEIGHTS,))[0], do.GrantLease)


def test_parts_of_later_phases_do_not_move_if_the_next_phase_would_wait_for_them() -> None:
    told = computing(ALL_PARTS)
    told.expect(B, (WEIGHTS,), ALL_PARTS, asks_at=25.0)
    [offload] = told.ended(A, 10.0)
    [weights] = told.done(offload, 18.0)
    assert told.done(weights, 19.0) == [], "the rest takes 7 s"


def test_a_switch_costs_the_parts_that_go_out_and_those_that_are_missing() -> None:
    costs = SetupCosts(Transfers(bytes_per_s=10.0))
    a, b = JobState(A, STATE), JobState(B, STATE)
    assert costs.setup_s(a, b) == 16.0
    assert costs.setup_s(JobState(A, STATE, (WEIGHTS,)), JobState(B, STATE, (WEIGHTS, GRADIENTS))) == 3.0
    assert costs.setup_s(JobState(A, STATE, (WEIGHTS,)), a) == 7.0
    assert costs.setup_s(a, JobState(A, STATE, (WEIGHTS,))) == 0.0


def test_transfers_of_different_parts_are_learned_by_themselves() -> None:
    costs = SetupCosts(Transfers(bytes_per_s=10.0))
    costs.measured(A, Direction.LOAD, num_bytes=0, seconds=3.0, parts=(WEIGHTS,))
    assert costs.load_s(A, STATE, (WEIGHTS,)) == 3.0
    assert costs.load_s(A, STATE) == 8.0
    costs.forget(A)
    assert costs.load_s(A, STATE, (WEIGHTS,)) == 1.0


def test_the_queue_notices_a_lease_without_its_parts() -> None:
    told = computing(ALL_PARTS)
    told.queue._resident = JobState(A, STATE, (WEIGHTS,))
    with pytest.raises(AssertionError, match=r"only .* are on the devices"):
        told.queue.check()


def test_weights_cannot_stay_on_the_host() -> None:
    with pytest.raises(ValueError, match="its weights must come to the devices"):
        JobSpec(id=A, train_devices=8, host_parts=(WEIGHTS,))


def test_offload_reports_of_parts_are_learned_for_what_was_there() -> None:
    told = computing((WEIGHTS,))
    told.ended(A, 10.0)
    [offload] = told.ask(B, 11.0, (WEIGHTS,))
    told.done(offload, 15.0, seconds=4.0)
    assert told.queue.costs.offload_s(A, STATE, (WEIGHTS,)) == 4.0
    assert told.queue.costs.offload_s(A, STATE) == 32.0, "80 bytes, of which 10 take 4 s"
