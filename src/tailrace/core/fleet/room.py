"""The fleet room: the rollout instances, the versions they hold, and when work is planned over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tailrace.core import commands as do
from tailrace.core.costs import NOTHING_KNOWN, CostModel
from tailrace.core.fleet.instance import Instance, InstancePhase
from tailrace.core.fleet.length_history import LengthHistory
from tailrace.core.fleet.sizes import Sizes
from tailrace.core.ids import InstanceId, ResponseId, Version
from tailrace.core.responses.response import Response
from tailrace.core.responses.room import Responses
from tailrace.core.run.waits import Wait
from tailrace.core.schedule import Limits


@dataclass(slots=True, kw_only=True)
class Loans:
    """What is remembered for lending instances to training."""

    round: int = -1
    """Round in which lending was last considered."""
    num_seen: int = 0
    """Complete groups at that time."""
    lent: tuple[int, ...] = ()
    """Instances that are lent. One that leaves the fleet stays among them: its devices are lent."""
    made_in: int = -1
    """Round in which instances were last lent."""
    current: LengthHistory = field(default_factory=LengthHistory)
    """Lengths of this round. Lengths are kept if the policy asks for them."""
    short: LengthHistory = field(default_factory=LengthHistory)
    """Lengths of earlier short rounds."""
    long: LengthHistory = field(default_factory=LengthHistory)

    def of_kind(self, *, is_long: bool) -> LengthHistory:
        return self.long if is_long else self.short


@dataclass(slots=True, kw_only=True)
class Fleet:
    """State of the fleet room."""

    instances: dict[InstanceId, Instance] = field(default_factory=dict)
    costs: CostModel = NOTHING_KNOWN
    """Current cost model of an instance: the one of the schedule, until it is measured."""
    num_starts: int = 0
    """Starts of instances so far. Each start has a number of its own, also if an instance leaves and comes back."""
    num_absent: int = 0
    """Instances that are neither running nor starting."""
    num_retiring: int = 0
    """Instances that will leave the fleet."""
    all_hold: Version | None = None
    """Every instance holds this version or a newer one; None: not known."""
    empty_since: float | None = None
    """Since when the fleet has no instance; None: it has at least one."""
    needs_plan: bool = True
    """Whether something happened since the last plan."""
    planned_at: float | None = None
    """When the planned policies were last asked."""
    num_planned: int = 0
    """Running and queued responses at that time."""
    plan_at: float | None = None
    """When the next plan is due; None: no plan is scheduled."""
    loans: Loans = field(default_factory=Loans)
    """Instances that are lent to training."""
    sizes: Sizes = field(default_factory=Sizes)
    """Parallel sizes of instances."""

    # Questions

    @property
    def next_plan_at(self) -> float | None:
        return self.plan_at

    @property
    def parallel_size(self) -> int:
        """Devices of each instance that works; 0: the schedule knows no sizes."""
        return self.sizes.current

    @property
    def has_lent(self) -> bool:
        """Whether instances are lent to training."""
        return bool(self.loans.lent)

    def is_off_device(self) -> bool:
        """Whether all instances have released their memory, so that colocated training can use the devices."""
        away = (InstancePhase.RELEASED, InstancePhase.ABSENT)
        return all(instance.phase in away for instance in self.instances.values())

    def runs_training(self, responses: Responses) -> bool:
        """Whether an instance generates a response for training."""
        return any(responses.is_training(r) for i in self.instances.values() for r in i.running)

    def is_released(self, number: int) -> bool:
        """Whether this instance is in the fleet and has released its memory."""
        instance = self.instances.get(InstanceId(number))
        return instance is not None and instance.phase is InstancePhase.RELEASED

    def version_at(self, instance: InstanceId) -> Version:
        return self.instances[instance].version

    def failure(self, limits: Limits) -> str | None:
        """Return why the run must fail; None if it can continue."""
        if not self.num_absent:
            return None
        absent = [each for each in self.instances.values() if not each.is_parked]
        if any(each.phase is not InstancePhase.ABSENT for each in absent) or self.sizes.is_changing or not absent:
            return None
        if any(each.losses.count <= limits.max_restarts for each in absent):
            return None
        last = max(absent, key=lambda each: each.heard_at)
        times = "1 time" if last.losses.count == 1 else f"{last.losses.count} times"
        lost = f"instance {last.id} was lost {times} within one step"
        return f"no rollout instance is left: {lost}; the last time: {last.losses.last}"

    def waits(self, limits: Limits, published: Version) -> Iterator[Wait]:
        for instance in self.instances.values():
            yield from _instance_waits(instance, limits, published)
        if self.empty_since is not None:
            yield Wait(what="a rollout instance to be added", since=self.empty_since, limit_s=limits.start_s)

    # Notices

    def add(self, instance: Instance) -> None:
        self.instances[instance.id] = instance
        self.num_absent += 1
        self.empty_since, self.all_hold = None, None

    def remove(self, instance: Instance, now: float) -> None:
        del self.instances[instance.id]
        self.num_absent -= instance.phase is InstancePhase.ABSENT
        self.num_retiring -= instance.is_retiring
        self.empty_since = None if self.instances else now

    def move(self, instance: Instance, phase: InstancePhase, now: float) -> None:
        """Change the phase of an instance."""
        self.num_absent += (phase is InstancePhase.ABSENT) - (instance.phase is InstancePhase.ABSENT)
        self.all_hold = None
        instance.move(phase, now=now)

    def note_event(self) -> None:
        """Note that something happened, so that a plan may find new work."""
        self.needs_plan = True

    def step_trained(self) -> None:
        """Note that an optimizer step is complete: the counts of lost instances start again at 0, and lent instances
        come back."""
        for instance in self.instances.values():
            instance.losses.count = 0
        self.take_back()

    def take_back(self) -> None:
        """Note that no instance is lent any more: each pulls and works again."""
        self.loans.lent = ()
        for instance in self.instances.values():
            instance.is_lent = False

    def use_size(self, size: int, costs: CostModel) -> None:
        """Note that the instances of this parallel size shall work from now on."""
        self.sizes.current, self.sizes.is_changing, self.costs = size, True, costs

    def layout_is_free(self, numbers: Iterable[int]) -> None:
        """Note that the devices of these instances are free: each starts or pulls, and works."""
        self.sizes.is_changing, self.all_hold = False, None
        for instance in self.instances.values():
            if instance.id in numbers:
                instance.is_parked = False

    def preempted(self, instance: Instance, total: int, *, counts: bool) -> None:
        """Note how many preemptions an instance has had since its start. Those of evaluations do not count."""
        if counts and self.sizes.current:
            self.sizes.num_preempted += max(0, total - instance.num_preempted)
        instance.num_preempted = max(total, instance.num_preempted)

    def note_length(self, length: int, max_length: int, *, is_cut: bool) -> None:
        """Note that a training response ended, or was aborted, with this length."""
        self.loans.current.add(length, max_length, is_cut=is_cut)

    def round_ended(self, *, is_long: bool, num_launched: int) -> None:
        """Note that a round has ended that launched this many responses. Its lengths are known from now on, and count
        more than those before."""
        if self.sizes.current:
            self.sizes.of_kind(is_long=is_long).round_ended(self.sizes.num_preempted, num_launched)
        self.loans.of_kind(is_long=is_long).take_over(self.loans.current)
        self.loans.current = LengthHistory()

    def interrupt(self, responses: Iterable[ResponseId]) -> Iterator[do.Command]:
        """Interrupt those of these responses that run. Their tokens are kept."""
        chosen = set(responses)
        for instance in self.instances.values():
            running = [r for r in instance.running if r in chosen]
            if running:
                instance.stopping.update(dict.fromkeys(running))
                yield do.Interrupt(instance=instance.id, responses=tuple(running))

    def abort(self, responses: Iterable[Response]) -> Iterator[do.Command]:
        """Abort these running responses."""
        by_instance: dict[InstanceId, list[ResponseId]] = {}
        for response in responses:
            assert response.instance is not None
            by_instance.setdefault(response.instance, []).append(response.id)
            self.instances[response.instance].leave(response)
        for number, ids in sorted(by_instance.items()):
            self.instances[number].aborting.update(dict.fromkeys(ids))
            yield do.Abort(instance=number, responses=tuple(ids))

    def kill(self, number: InstanceId, reason: str, now: float) -> Iterator[do.Command]:
        """Kill an instance that does not answer."""
        self.instances[number].is_being_killed = True
        self.instances[number].heard_at = now
        yield do.KillInstance(instance=number, reason=reason)


def _instance_waits(instance: Instance, limits: Limits, published: Version) -> Iterator[Wait]:
    number, since = instance.id, instance.heard_at
    if instance.is_being_killed:
        # The instance is being killed already. If even that is not confirmed, a restart would not help: the run fails.
        yield Wait(what=f"end of instance {number}", since=since, limit_s=limits.start_s)
    elif instance.phase is InstancePhase.STARTING:
        yield Wait(what=f"start of instance {number}", since=since, limit_s=limits.start_s, instance=number)
    elif instance.phase is InstancePhase.PULLING:
        what = f"instance {number} to load version {published}"
        yield Wait(what=what, since=since, limit_s=limits.weights_s, instance=number)
    elif instance.phase is InstancePhase.RELEASING:
        what = f"instance {number} to release its memory"
        yield Wait(what=what, since=since, limit_s=limits.weights_s, instance=number)
    elif instance.phase is InstancePhase.STOPPING:
        which = "parked" if instance.is_parked else "retired"
        yield Wait(what=f"{which} instance {number} to end", since=since, limit_s=limits.start_s, instance=number)
    elif instance.aborting and not instance.running:
        what = f"instance {number} to abort {len(instance.aborting)} responses"
        yield _work_wait(instance, limits, report=what, progress=what)
    elif instance.running:
        first = next(iter(instance.running))
        more = f" and {len(instance.running) - 1} more" if len(instance.running) > 1 else ""
        which = f"{first}{more} on instance {number}"
        yield _work_wait(instance, limits, report=f"response {which}", progress=f"new tokens of {which}")


def _work_wait(instance: Instance, limits: Limits, *, report: str, progress: str) -> Wait:
    """Return the wait for the next report of an instance that has work, or for progress, whichever ends first."""
    wait = Wait(what=report, since=instance.heard_at, limit_s=limits.progress_s, instance=instance.id)
    if limits.stall_s is None or instance.progressed_at + limits.stall_s >= wait.until:
        return wait
    return Wait(what=progress, since=instance.progressed_at, limit_s=limits.stall_s, instance=instance.id)
