"""The simulated workers: the world performs every command of the coordinator and answers it in virtual time.

With ``colocated`` and ``shared``, rollout and training use the same devices. Colocated, the coordinator makes them take
turns. Shared, they may overlap, and then they slow each other down (``Sharing``). A judge on the devices of rollout
slows it down too (``judge_model.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import InstanceId, ResponseId, Version
from tailrace.core.schedule import Placement, Schedule
from tailrace.policies.strategies import policies_of
from tailrace.sim.driver import Agenda
from tailrace.sim.engine_costs import EngineCosts
from tailrace.sim.engine_model import SimRequest
from tailrace.sim.faults import Fault, InstanceFails, InstanceSlows, MessageLost
from tailrace.sim.instance import InstanceTimes, SimInstance
from tailrace.sim.lengths import Lengths, Ramp
from tailrace.sim.reward_model import RewardCosts
from tailrace.sim.reward_pools import SimRewards
from tailrace.sim.trainer_model import TrainerCosts, TrainerModel

_PRUNE_AT = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """Factors by which work takes longer while an optimizer step and all instances run on the same devices.

    If only a fraction of the instances is busy, the factor is interpolated linearly between 1 and the full factor.
    """

    rollout: float = 2.0
    training: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedInstance:
    """Costs of an instance of one parallel size."""

    engine: EngineCosts
    start_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldCosts:
    engine: EngineCosts
    instance: InstanceTimes
    trainer: TrainerCosts
    reward: RewardCosts
    num_prompts: int
    prompt_length: int
    max_response_length: int
    sharing: Sharing = Sharing()
    prompts_s: float = 0.0
    """Seconds from a request for prompts to the offer."""
    sizes: Mapping[int, SizedInstance] = field(default_factory=dict)
    """What replaces ``engine`` and ``instance.start_s``, by parallel size."""
    ramp: Ramp | None = None
    """How the token budget grows; None: it is always ``max_response_length``."""

    def size(self, devices: int) -> SizedInstance:
        found = self.sizes.get(devices)
        return SizedInstance(engine=self.engine, start_s=self.instance.start_s) if found is None else found

    def budget(self, version: Version) -> int:
        """Return the token budget of a response that begins with this version."""
        return self.max_response_length if self.ramp is None else self.ramp.budget(version)


class World:
    def __init__(
        self,
        schedule: Schedule,
        costs: WorldCosts,
        lengths: Lengths,
        agenda: Agenda,
        *,
        live: Callable[[], set[ResponseId]],
        faults: Iterable[Fault] = (),
        order: Sequence[tuple[int, int]] = (),
    ) -> None:
        """``live``: returns the responses that the run still needs; from time to time the data of others is released.

        ``order``: (epoch, prompt index) of the first training prompts, to follow a recorded run.
        """
        self._schedule, self._costs, self._lengths, self._agenda = schedule, costs, lengths, agenda
        self._live, self._order = live, order
        policies = policies_of(schedule)
        self._plans = policies.plans
        self._per_instance = schedule.parallelism.initial if schedule.parallelism.layouts else 1
        """Devices of each of the first instances, as far as they matter."""
        self._instances: dict[InstanceId, SimInstance] = {}
        self._targets: dict[ResponseId, tuple[int, bool]] = {}
        """Length of each response, and whether its budget ends it."""
        self._prune_at = _PRUNE_AT
        self._rewards = SimRewards(
            costs.reward,
            agenda,
            case_time=schedule.case_time,
            learns_times=policies.timeouts.learns,
            tokens_of=lambda response: costs.prompt_length + self._targets[response][0],
            rollout_share=self.rollout_share,
            on_judge=self._share_devices,
        )
        self._trainer = TrainerModel(costs.trainer, agenda, on_busy=self._train)
        self._is_training = False
        self._sharing = 1.0
        """Current factor by which other work on the same devices slows down rollout."""
        self._slow: dict[InstanceId, float] = {}
        self._repaired_at: dict[InstanceId, float] = {}
        """When a failed instance can be started again."""
        for fault in faults:
            agenda.at(fault.at, partial(self._strike, fault))

    def perform(self, command: do.Command) -> None:
        match command:
            case do.RequestPrompts():
                self._agenda.after(self._costs.prompts_s, self._offer(command))
            case do.LimitCases():
                self._rewards.limit(command)
            case do.Score():
                self._rewards.score(command)
            case do.AbortScores():
                self._rewards.abort(command)
            case do.StartTrainer(incarnation=incarnation):
                self._trainer.start(incarnation)
            case do.KillTrainer(reason=reason):
                self._trainer.kill(reason)
            case do.Accumulate(version=version, responses=responses, piece=piece, replicas=replicas):
                prompts = self._costs.prompt_length * len(responses)
                tokens = prompts + sum(self._targets[r][0] for r in responses)
                self._trainer.accumulate(
                    version, len(responses), tokens, piece=piece, num_replicas=len(replicas) or None
                )
            case do.DropStep():
                self._trainer.drop_step()
            case do.FinishStep(version=version):
                self._trainer.finish_step(version)
            case do.PublishWeights(version=version):
                self._trainer.publish(version)
            case do.SaveCheckpoint(version=version):
                self._trainer.save(version)
            case do.OpenRound() | do.ReturnToSize() | do.CloseRound() | do.ReportDropped() | do.CloseEvaluation():
                pass  # reports for observers: no event follows
            case do.StartInstance(instance=number, size=size):
                self._start(number, size)
            case do.KillInstance(instance=number, reason=reason):
                self._lose(number, reason)
            case _:
                self._perform_on_instance(command)

    def _perform_on_instance(self, command: do.Command) -> None:
        number = getattr(command, "instance", None)
        if number is None:
            raise TypeError(f"unknown command {command!r}")
        if (instance := self._instances.get(number)) is None:
            return  # the instance was lost; InstanceLost ends the command
        match command:
            case do.Submit(dispatches=dispatches):
                instance.submit([self._request(dispatch, instance.version) for dispatch in dispatches])
            case do.Interrupt(responses=responses):
                instance.interrupt(responses)
            case do.Abort(responses=responses):
                instance.abort(responses)
            case do.ReleaseMemory():
                instance.release()
            case do.PullWeights(version=version):
                instance.pull(version)
            case do.StopInstance():
                instance.stop()
            case _:
                raise TypeError(f"unknown command {command!r}")

    def _offer(self, command: do.RequestPrompts) -> ev.PromptsOffered:
        size = self._costs.num_prompts
        if command.source == self._schedule.train_source:
            first = command.epoch * size + command.offset
            prompts = tuple(self._prompt(first + i) for i in range(command.count))
            epoch, offset = divmod(first + command.count, size)
        else:
            prompts = tuple((command.epoch, index) for index in range(command.offset, command.offset + command.count))
            epoch, offset = command.epoch, command.offset + command.count
        return ev.PromptsOffered(source=command.source, prompts=prompts, next_epoch=epoch, next_offset=offset)

    def _prompt(self, position: int) -> tuple[int, int]:
        if position < len(self._order):
            return self._order[position]
        epoch, prompt = divmod(position - len(self._order), self._costs.num_prompts)
        return (epoch + 1 + max((epoch for epoch, _ in self._order), default=-1), prompt)

    def _request(self, dispatch: do.Dispatch, version: Version) -> tuple[SimRequest[ResponseId], bool]:
        response, budget = dispatch.response, self._costs.budget(version)
        if response not in self._targets:
            natural = self._lengths.draw(response, version)
            self._targets[response] = (min(natural, budget), natural > budget)
            if len(self._targets) == self._prune_at:
                self._agenda.at(self._agenda.now, self._prune)
        target, is_cut = self._targets[response]
        prompt, group = self._costs.prompt_length, response.group
        return SimRequest(response, prompt=prompt, length=dispatch.start, target=target, group=group), is_cut

    def _prune(self) -> None:
        live = self._live().union(*(instance.held() for instance in self._instances.values()))
        self._targets = {r: target for r, target in self._targets.items() if r in live}
        self._prune_at = max(_PRUNE_AT, 2 * len(self._targets))

    def _start(self, number: InstanceId, size: int) -> None:
        times, costs = self._costs.instance, self._costs.size(size)
        # At least two reports within the time limit after which the coordinator kills an instance.
        keepalive_s = self._schedule.limits.progress_s / 2
        instance = SimInstance(
            number,
            costs=costs.engine,
            times=times,
            keepalive_s=keepalive_s,
            load_s=times.load_s if self._plans else math.inf,
            agenda=self._agenda,
            on_busy=self._share_devices,
            num_devices=size or self._per_instance,
        )
        self._instances[number] = instance
        instance.slow_down(self._slowdown(number))
        instance.start(max(self._agenda.now + costs.start_s, self._repaired_at.get(number, 0.0)))

    def _lose(self, number: InstanceId, reason: str) -> None:
        if (instance := self._instances.pop(number, None)) is not None:
            for event in instance.vanish():
                self._agenda.post(event)
            self._agenda.post(ev.InstanceLost(instance=number, reason=reason))
            self._share_devices()

    def _strike(self, fault: Fault) -> None:
        match fault:
            case InstanceFails(instance=number, down_s=down_s):
                self._repaired_at[number] = self._agenda.now + down_s
                self._lose(number, "a simulated failure")
            case InstanceSlows(instance=number, until=until, factor=factor):
                self._slow[number] = factor
                self._set_speed(number)
                self._agenda.at(until, lambda: self._recover(number))
            case MessageLost(instance=number, repeat_s=repeat_s):
                if (instance := self._instances.get(number)) is not None:
                    instance.lose_next_message(repeat_s)

    def _recover(self, number: InstanceId) -> None:
        self._slow.pop(number, None)
        self._set_speed(number)

    def _train(self, is_training: bool) -> None:
        self._is_training = is_training
        self._share_devices()

    def rollout_share(self) -> float:
        """Share of the devices of rollout whose instance generates."""
        busy = sum(instance.num_devices for instance in self._instances.values() if instance.is_busy)
        return busy / (self._schedule.num_instances * self._per_instance)

    def _share_devices(self) -> None:
        """Update all speeds after an optimizer step or a pass of a judge began or ended, or an instance got work or
        became idle."""
        is_shared, sharing = self._schedule.placement is Placement.SHARED, self._rewards.slowdown
        busy = self.rollout_share() if is_shared else 0.0
        if is_shared and self._is_training:
            sharing *= 1.0 + (self._costs.sharing.rollout - 1.0) * busy
        if sharing != self._sharing:
            self._sharing = sharing
            for number in self._instances:
                self._set_speed(number)
        if is_shared:
            self._trainer.slow_down(1.0 + (self._costs.sharing.training - 1.0) * busy)

    def _set_speed(self, number: InstanceId) -> None:
        if (instance := self._instances.get(number)) is not None:
            instance.slow_down(self._slowdown(number))

    def _slowdown(self, number: InstanceId) -> float:
        return self._sharing * self._slow.get(number, 1.0)
