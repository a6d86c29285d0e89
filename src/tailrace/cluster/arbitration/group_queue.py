"""The queue of one node group: who computes on it, whose state is on its devices, and who comes next.

    free -> switch (offload the resident job, load the next one) -> lease -> (hold ->) free
    free -> switch in advance -> free

A turn is a switch, if one is needed, and a lease. Turns are not interrupted. While nobody waits, the state of the job
that is expected to ask first moves in advance. Each door takes a fact and returns the commands that follow from it.

Promises:

* At most one job has a lease, and the parts of its state that it asked for are then on the devices.
* A job has at most one request. Its requests are granted in the order in which it makes them.
* A failed operation, a job that leaves and a lost node end the turn; the others go on.
* A transfer has a number. A report about a transfer that was given up does not end a later one.
* A report that fits nothing is counted in ``num_ignored`` and changes nothing.
* No request starves. Let k jobs use the group, let no turn and no hold take longer than L, and no switch longer than
  C. As long as no node is lost, a request gets its lease after at most

      max(max_wait_s, C) + (k - 1) L + C

  Proof: a switch in advance begins only while nobody waits, so one that is in progress when the request comes is over
  within C, and no other begins. After ``max_wait_s`` the request is overdue. When both times have passed, at most one
  turn or hold is in progress. It is over within L. From then on overdue requests come first, in the order in which they
  came, and nothing is held. A request that is ahead came earlier and has not had its turn yet, and each job has only
  one. The request's own job is not ahead, nor is the job of the turn in progress: it can ask again only later. So at
  most k - 2 turns come before, or k - 1 if none was in progress, and then the request's own switch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tailrace.cluster.arbitration.choice import choose, is_overdue
from tailrace.cluster.arbitration.expected import ExpectedPhase, next_expected
from tailrace.cluster.arbitration.fair_share import FairShare
from tailrace.cluster.arbitration.known_costs import KnownCosts
from tailrace.cluster.arbitration.named_waits import prefetch_wait, request_waits, turn_wait
from tailrace.cluster.arbitration.ratios import WaitingPhase
from tailrace.cluster.arbitration.requests import PhaseRequest
from tailrace.cluster.arbitration.setup_costs import JobState, SetupCosts
from tailrace.cluster.arbitration.turns import Errand, Held, Lease, Switch, Turn
from tailrace.cluster.commands import Command, GrantLease, Hold, Load, Offload, Prefetch
from tailrace.cluster.events import Direction, TransferMeasured
from tailrace.cluster.ids import JobId, NodeGroupId, TenantId
from tailrace.cluster.settings import ClusterRules
from tailrace.core.run.waits import Wait


class GroupQueue:
    def __init__(self, group: NodeGroupId, rules: ClusterRules) -> None:
        self._group, self._rules = group, rules
        self._forecast = KnownCosts(rules)
        self._shares = FairShare(dict(rules.tenants))
        self._waiting: dict[JobId, PhaseRequest] = {}
        self._latest_starts: dict[JobId, float] = {}
        self._expected: dict[JobId, ExpectedPhase] = {}
        self._resident: JobState | None = None
        self._turn: Turn | None = None
        self._is_up = True
        self._num_transfers = 0
        self.num_ignored = 0
        """Number of reports that were repeated, late or impossible, and therefore ignored."""

    # Questions

    @property
    def running(self) -> JobId | None:
        """Job that has the lease."""
        return self._turn.request.job if isinstance(self._turn, Lease) else None

    @property
    def resident(self) -> JobId | None:
        """Job whose state is on the devices."""
        return None if self._resident is None else self._resident.job

    @property
    def moves_in_advance(self) -> bool:
        """A job's state moves that has not asked yet."""
        return isinstance(self._turn, Switch) and self._turn.errand.expected is not None

    @property
    def is_idle(self) -> bool:
        """Nothing computes, moves or is held here, and nobody waits."""
        return self._turn is None and not self._waiting

    @property
    def costs(self) -> SetupCosts:
        """Costs of switches, as they have been measured on this group."""
        return self._forecast.costs

    def wake_at(self) -> float | None:
        """Return when ``tick`` is needed, if nothing else happens before; None: not at all."""
        return self._turn.until if isinstance(self._turn, Held) else None

    def waits(self, now: float) -> list[Wait]:
        """Return what each job that wants the group waits for, and what the group itself waits for."""
        of_requests = request_waits(
            self._candidates(now), self._turn, self._group, max_wait_s=self._rules.max_wait_s, is_up=self._is_up
        )
        of_turn = turn_wait(self._turn, self._group)
        of_prefetch = prefetch_wait(self._forecast.prefetch_in_progress, self._group)
        return [wait for wait in (of_turn, *of_requests, of_prefetch) if wait is not None]

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        turn = self._turn
        if isinstance(turn, Lease):
            owner, there = turn.request.owner, self._resident
            assert there is not None, f"{owner.job} computes, and nothing is on the devices"
            assert (there.job, there.state) == (owner.job, owner.state), f"{owner} computes, {there} is on the devices"
            assert not owner.missing_from(there).parts, f"{owner} computes, only {there.parts} are on the devices"
        if isinstance(turn, Lease | Switch) and turn.request is not None:
            assert turn.request.job not in self._waiting, f"{turn.request.job} has a turn and waits for one"
        assert self._is_up or (turn is None and self._resident is None), "something is on a group that has lost a node"
        assert self._waiting.keys() == {request.job for request in self._waiting.values()}
        assert turn is not None or not self._waiting or not self._is_up, f"free, but {[*self._waiting]} wait"

    # Doors

    def expect(self, latest_starts: Mapping[JobId, float], phases: Iterable[ExpectedPhase] = ()) -> None:
        """Set when jobs that do not wait now must start at the latest, in order not to become slower, and which phases
        they are expected to ask for."""
        self._latest_starts = dict(latest_starts)
        self._expected = {phase.owner.job: phase for phase in phases}

    def ask(self, request: PhaseRequest, now: float) -> list[Command]:
        if not request.operations_s or request.job in self._waiting or request.job == self._job_of_turn():
            return self._ignore()
        if not self._is_active(request.tenant):
            self._shares.enter(request.tenant)
        self._waiting[request.job] = request
        if isinstance(self._turn, Held) and self._turn.job == request.job:
            return self._follow(request, self._turn, now)
        return self._advance(now)

    def ended(self, job: JobId, seconds: float, failed: bool, next_in_s: float | None, now: float) -> list[Command]:
        lease = self._turn
        if not isinstance(lease, Lease) or lease.request.job != job:
            return self._ignore()
        self._end_turn(now)
        if failed:
            return self._advance(now)
        self._forecast.took(lease.request, seconds)
        self._turn = held = self._hold_after(lease.request, next_in_s, now)
        if held is None or not held.is_reserved:
            return self._advance(now)
        return [Hold(job=job, group=self._group, until=held.until)]

    def transferred(self, report: TransferMeasured, now: float) -> list[Command]:
        job, direction, seconds = report.job, report.direction, report.seconds
        if direction is Direction.PREFETCH:
            is_expected = self._forecast.prefetch_ended(job, report.transfer, seconds)
            return [] if is_expected else self._ignore()
        switch = self._turn
        if not isinstance(switch, Switch):
            return self._ignore()
        if (switch.transfer, switch.moving, switch.direction) != (report.transfer, job, direction):
            return self._ignore()
        self.costs.measured(
            job,
            direction,
            num_bytes=report.num_bytes,
            seconds=seconds,
            prefetched_s=switch.prefetched_s,
            parts=switch.parts,
        )
        return self._offloaded(switch, now) if direction is Direction.OFFLOAD else self._loaded(switch, now)

    def leave(self, job: JobId, now: float) -> list[Command]:
        """The job has ended or belongs to another group now; nothing of it is left on the devices."""
        self._waiting.pop(job, None)
        self._latest_starts.pop(job, None)
        self._expected.pop(job, None)
        self._forecast.forget(job)
        turn, was_resident = self._turn, self.resident == job
        if was_resident:
            self._resident = None
        if isinstance(turn, Switch) and turn.direction is Direction.OFFLOAD:
            if self._job_of_turn() == job:
                self._end_turn(now)
                self._turn = turn = replace(turn, errand=replace(turn.errand, request=None))
            return self._offloaded(turn, now) if was_resident else []
        is_moving = isinstance(turn, Switch) and turn.moving == job
        if job == self._job_of_turn() or is_moving or (isinstance(turn, Held) and turn.job == job):
            self._end_turn(now)
        return self._advance(now)

    def lose(self, now: float) -> list[Command]:
        """A node is lost: nothing is on the devices any more, and nothing can run. Requests stay."""
        turn = self._turn
        self._end_turn(now)
        if isinstance(turn, Switch) and turn.request is not None:
            self._waiting[turn.request.job] = turn.request
        self._is_up, self._resident, self._expected = False, None, {}
        self._forecast.prefetch_lost()
        return []

    def restore(self, now: float) -> list[Command]:
        """All nodes are there again."""
        self._is_up = True
        return self._advance(now)

    def tick(self, now: float) -> list[Command]:
        """Time has passed."""
        if isinstance(self._turn, Held) and now >= self._turn.until:
            self._end_turn(now)
        return self._advance(now)

    # Turns

    def _advance(self, now: float) -> list[Command]:
        """Begin the next turn if the group is free, and prepare the one after it."""
        if isinstance(self._turn, Held) and now > self._turn.until:
            self._end_turn(now)
        commands = list[Command]()
        if self._turn is None and self._is_up:
            chosen = self._choose(now)
            commands += self._switch_in_advance(now) if chosen is None else self._begin(chosen, now)
        return commands + self._prefetch(now)

    def _begin(self, chosen: WaitingPhase, now: float) -> list[Command]:
        request = self._waiting.pop(chosen.request.job)
        self._shares.begin(request.tenant, chosen.total_s)
        if not chosen.needs_switch:
            return self._grant(request, now, began_at=now, expected_s=chosen.total_s)
        return self._move(Errand(request=request, began_at=now, expected_s=chosen.total_s), now)

    def _switch_in_advance(self, now: float) -> list[Command]:
        """Nobody waits: move the state of the job that will ask first, then what its later phases need besides."""
        phase = next_expected(self._expected.values(), self.resident, now)
        is_there = phase is not None and phase.owner.is_on_devices(self._resident)
        if phase is not None and is_there:
            phase = replace(phase, owner=replace(phase.owner, parts=phase.later_parts))
        if phase is None or phase.owner.is_on_devices(self._resident):
            return []
        expected_s = self._forecast.setup_s(self._resident, phase.owner, now)
        if is_there and now + expected_s > phase.asks_at:
            return []  # the phase would wait for what only later ones need
        return self._move(Errand(expected=phase, began_at=now, expected_s=expected_s), now)

    def _move(self, errand: Errand, now: float) -> list[Command]:
        """Begin the next transfer of a switch: another job's state goes out, then what is missing of this one's comes
        in."""
        resident, transfer = self._resident, self._next_transfer()
        is_load = resident is None or resident.job == errand.owner.job
        moving = errand.owner.missing_from(resident) if resident is None or is_load else resident
        predict_s = self.costs.load_s if is_load else self.costs.offload_s
        self._turn = Switch(
            errand=errand,
            direction=Direction.LOAD if is_load else Direction.OFFLOAD,
            moving=moving.job,
            parts=moving.parts,
            transfer=transfer,
            moving_since=now,
            moving_s=predict_s(moving.job, moving.state, moving.parts),
            prefetched_s=self._forecast.prefetched_s(moving, now) if is_load else 0.0,
        )
        if is_load:
            return [Load(job=moving.job, group=self._group, transfer=transfer, parts=moving.parts)]
        return [Offload(job=moving.job, group=self._group, transfer=transfer)]

    def _next_transfer(self) -> int:
        self._num_transfers += 1
        return self._num_transfers

    def _grant(self, request: PhaseRequest, now: float, *, began_at: float, expected_s: float) -> list[Command]:
        grain = self._rules.grain
        self._turn = Lease(
            request=request,
            began_at=began_at,
            expected_s=expected_s,
            granted_at=now,
            execution_s=self._forecast.execution_s(request),
        )
        # The state may have another size than in the job's last phase.
        self._resident = request.owner.joined(self._resident)
        return [GrantLease(job=request.job, group=self._group, num_operations=request.num_granted(grain))]

    def _offloaded(self, switch: Switch, now: float) -> list[Command]:
        self._resident = None
        if switch.request is None:  # who comes next is decided anew: somebody may have asked meanwhile
            self._end_turn(now)
            return self._advance(now)
        return self._move(switch.errand, now)

    def _loaded(self, switch: Switch, now: float) -> list[Command]:
        errand = switch.errand
        self._forecast.prefetch_lost()
        self._resident = replace(errand.owner, parts=switch.parts).joined(self._resident)
        if errand.request is None:
            self._end_turn(now)
            return self._advance(now)
        granted = self._grant(errand.request, now, began_at=errand.began_at, expected_s=errand.expected_s)
        return granted + self._prefetch(now)

    def _end_turn(self, now: float) -> None:
        """Charge the tenant for the seconds that the turn really took."""
        turn = self._turn
        if turn is not None and turn.payer is not None:
            self._shares.charge(turn.payer, now - turn.began_at - turn.charged_s)
        self._turn = None

    # Holds

    def _hold_after(self, request: PhaseRequest, next_in_s: float | None, now: float) -> Held | None:
        """Return the hold that follows a lease, if it is worth one."""
        if next_in_s is None:
            return None
        job, limit_s = request.job, self._forecast.hold_limit_s(self._resident or request.owner)
        if limit_s > 0 and next_in_s <= limit_s and not self._is_any_overdue(now):
            return Held(job=job, tenant=request.tenant, began_at=now, until=now + limit_s, is_reserved=True)
        if next_in_s <= 0:
            # The job asks at this very moment. Its request takes part in the choice.
            return Held(job=job, tenant=request.tenant, began_at=now, until=now, is_reserved=False)
        return None

    def _follow(self, request: PhaseRequest, held: Held, now: float) -> list[Command]:
        """The job for which the group is held has asked."""
        self._end_turn(now)
        if not held.is_reserved or now > held.until or self._is_any_overdue(now):
            return self._advance(now)
        return self._begin(self._forecast.candidate(request, self._resident, now), now) + self._prefetch(now)

    # Prefetches

    def _prefetch(self, now: float) -> list[Command]:
        """Prepare the next turn while this one computes: once per lease for a job that waits, and before that for the
        one that is expected to ask first."""
        lease = self._turn
        if not self._rules.prefetch or not isinstance(lease, Lease) or lease.has_prefetched:
            return []
        later = replace(lease.request.owner, parts=lease.request.later_parts).missing_from(self._resident)
        chosen = self._choose(max(now, lease.granted_at + lease.execution_s))
        owner = later if later.parts else self._expected_owner(now) if chosen is None else chosen.request.owner
        if owner is None or self._forecast.prefetched_job == owner.job:
            return []
        self._turn = replace(lease, has_prefetched=chosen is not None or bool(later.parts))
        transfer = self._next_transfer()
        self._forecast.prefetch_began(owner, transfer, now)
        return [Prefetch(job=owner.job, group=self._group, transfer=transfer, parts=owner.parts)]

    def _expected_owner(self, now: float) -> JobState | None:
        """Return the job to prefetch for while nobody waits, if nothing was prefetched yet."""
        phase = next_expected(self._expected.values(), self.resident, now)
        return None if phase is None or self._forecast.prefetched_job is not None else phase.owner

    # The choice

    def _choose(self, now: float) -> WaitingPhase | None:
        return choose(
            self._candidates(now), shares=self._shares, latest_starts=self._latest_starts, rules=self._rules, now=now
        )

    def _candidates(self, now: float) -> list[WaitingPhase]:
        return [self._forecast.candidate(request, self._resident, now) for request in self._waiting.values()]

    def _is_any_overdue(self, now: float) -> bool:
        return any(is_overdue(request, self._rules, now) for request in self._waiting.values())

    def _is_active(self, tenant: TenantId) -> bool:
        turn = self._turn
        of_turn = turn.tenant if isinstance(turn, Held) else turn.request.tenant if turn and turn.request else None
        return of_turn == tenant or any(request.tenant == tenant for request in self._waiting.values())

    def _job_of_turn(self) -> JobId | None:
        """Job that has a lease or gets one after the switch in progress."""
        turn = self._turn
        return turn.request.job if isinstance(turn, Lease | Switch) and turn.request is not None else None

    def _ignore(self) -> list[Command]:
        self.num_ignored += 1
        return []
