"""A scenario: the schedules to simulate, the costs and the response lengths.

All schedules of a scenario have the same costs and the same lengths. The methods return variants of a scenario with
other lengths, seeds, numbers of steps or devices.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tailrace.config.complaints import SettingsError
from tailrace.core.schedule import Placement
from tailrace.policies.strategies import ParallelSizes
from tailrace.sim.engine_costs import EngineCosts
from tailrace.sim.instance import InstanceTimes
from tailrace.sim.lengths import DrawnLengths, Lengths, Ramp, RampedLengths, read_trace
from tailrace.sim.parallel_sizes import engine_at
from tailrace.sim.reward_sections import RewardSection
from tailrace.sim.scenario_sections import (
    EngineSection,
    FaultSection,
    GridEntry,
    LengthsSection,
    ScheduleSection,
    TrainerSection,
    VariantSection,
)
from tailrace.sim.section import Sourced
from tailrace.sim.trainer_model import TrainerCosts
from tailrace.sim.world import Sharing, SizedInstance, WorldCosts


class ScenarioError(SettingsError):
    """The scenario cannot be simulated; the message says why."""


class Scenario(Sourced):
    name: str
    seed: int = 0
    schedule: ScheduleSection
    engine: EngineSection
    trainer: TrainerSection
    reward: RewardSection
    lengths: LengthsSection
    faults: tuple[FaultSection, ...] = ()

    def with_lengths(self, entry: GridEntry, cap: int) -> Scenario:
        """Return the same scenario with other lengths."""
        drawn = entry.model_dump(exclude={"name"})
        lengths = LengthsSection(max_response_length=cap, num_prompts=self.lengths.num_prompts, **drawn)
        return self.model_copy(update={"name": f"{self.name}/{entry.name}/{cap}", "lengths": lengths})

    def with_seed(self, seed: int) -> Scenario:
        return self.model_copy(update={"seed": seed})

    def with_steps(self, num_steps: int) -> Scenario:
        return self.model_copy(update={"schedule": self.schedule.model_copy(update={"num_steps": num_steps})})

    def with_split(self, rollout: float) -> Scenario:
        """Return the same scenario with this share of its devices for rollout and the others for training."""
        engine, trainer = self.engine, self.trainer
        per_replica = trainer.devices // trainer.num_replicas
        devices = engine.num_instances * engine.devices_per_instance + trainer.devices
        num_instances = round(rollout * devices / engine.devices_per_instance)
        num_replicas = (devices - num_instances * engine.devices_per_instance) // per_replica
        return self._with_devices(num_instances, num_replicas, engine.placement)

    def colocated(self) -> Scenario:
        """Return the same scenario with all its devices used by rollout and training in turn."""
        engine, trainer = self.engine, self.trainer
        per_replica = trainer.devices // trainer.num_replicas
        devices = engine.num_instances * engine.devices_per_instance + trainer.devices
        return self._with_devices(devices // engine.devices_per_instance, devices // per_replica, Placement.COLOCATED)

    def _with_devices(self, num_instances: int, num_replicas: int, placement: Placement) -> Scenario:
        per_replica = self.trainer.devices // self.trainer.num_replicas
        engine = self.engine.model_copy(update={"num_instances": num_instances, "placement": placement})
        replicas = {"num_replicas": num_replicas, "devices": num_replicas * per_replica}
        return self.model_copy(update={"engine": engine, "trainer": self.trainer.model_copy(update=replicas)})

    def scaled(self, factor: int) -> Scenario:
        """Return the same scenario with ``factor`` times the batch and the devices."""
        fields = {
            "schedule": ("rollout_batch_size",),
            "engine": ("num_instances",),
            "trainer": ("num_replicas", "devices"),
        }
        sections: dict[str, Any] = {"reward": self.reward.scaled(factor)}
        for name, counts in fields.items():
            section = getattr(self, name)
            sections[name] = section.model_copy(update={count: factor * getattr(section, count) for count in counts})
        return self.model_copy(update=sections)

    def under(self, variant: VariantSection) -> Scenario:
        """Return the scenario with the rewards of a variant: how long test cases may run, and where judges compute. If
        its parallel size is fixed, there are no others."""
        update: dict[str, Any] = {}
        tests, judge, chosen = self.reward.code_tests, self.reward.judge, variant.reward
        if chosen.code_tests.timeouts is not None:
            if tests is None:
                raise ScenarioError("a variant sets reward.code_tests.timeouts, but there is no reward.code_tests")
            update["code_tests"] = tests.model_copy(update={"timeouts": chosen.code_tests.timeouts})
        if chosen.judge.placement is not None:
            if judge is None:
                raise ScenarioError("a variant sets reward.judge.placement, but there is no reward.judge")
            update["judge"] = judge.model_copy(update={"placement": chosen.judge.placement})
        sections: dict[str, Any] = {"reward": self.reward.model_copy(update=update)} if update else {}
        if self.engine.parallel is not None and variant.resolved().parallelism is ParallelSizes.FIXED:
            sections["engine"] = self.engine.model_copy(update={"parallel": None})
        return self.model_copy(update=sections) if sections else self

    def at_size(self, size: int) -> Scenario:
        """Return the same scenario with instances of another parallel size, on the same devices."""
        known, before = self.engine.parallel, self.engine.devices_per_instance
        if known is None or size not in known.sizes:
            raise ScenarioError(f"engine.parallel.sizes: {size} is not one of them")
        sections: dict[str, Any] = {"engine": engine_at(self.engine, known, size)}
        if (judge := self.reward.judge) is not None:
            taken = judge.model_copy(update={"kv_tokens": judge.kv_tokens * size // before})
            sections["reward"] = self.reward.model_copy(update={"judge": taken})
        return self.model_copy(update=sections)

    @property
    def num_instances(self) -> int:
        """Rollout instances, without those whose devices judges have for themselves."""
        judge, engine = self.reward.judge, self.engine
        taken = math.ceil(judge.devices / engine.devices_per_instance) if judge is not None and judge.is_apart else 0
        if taken >= engine.num_instances:
            raise ScenarioError(f"reward.judge.devices: they take all {engine.num_instances} rollout instances")
        return engine.num_instances - taken

    @property
    def num_replicas(self) -> int:
        """Replicas of the trainer, likewise. A trainer with devices of its own keeps them."""
        judge, trainer = self.reward.judge, self.trainer
        is_apart = self.engine.placement is Placement.DISAGGREGATED
        if judge is None or not judge.is_apart or not judge.takes_from_training or is_apart:
            return trainer.num_replicas
        per_replica = trainer.devices // trainer.num_replicas
        if trainer.devices - judge.devices < per_replica:
            raise ScenarioError(f"reward.judge.devices: they leave no replica of {per_replica} devices for training")
        return (trainer.devices - judge.devices) // per_replica

    @property
    def kv_capacity(self) -> int:
        """Size of an instance's KV cache in tokens, without the memory of a judge on the same devices."""
        judge = self.reward.judge
        return self.engine.kv_capacity - (judge.kv_tokens if judge is not None and not judge.is_apart else 0)

    def engine_costs(self) -> EngineCosts:
        """Return the costs of an instance of ``devices_per_instance``."""
        costs = {name: getattr(self.engine, name) for name in EngineCosts.__slots__}
        return EngineCosts(**costs | {"kv_capacity": self.kv_capacity})

    def costs_of_sizes(self) -> dict[int, SizedInstance]:
        """Return the costs of an instance of each parallel size, if there are several."""
        known = self.engine.parallel
        found = {}
        for size in () if known is None else known.sizes:
            costs, kept = self.at_size(size).engine_costs(), 0 if known is None else known.kept_tokens * size
            start_s = 0.0 if known is None else known.start_of(size)
            found[size] = SizedInstance(engine=replace(costs, kv_capacity=costs.kv_capacity - kept), start_s=start_s)
        return found

    def world_costs(self) -> WorldCosts:
        engine = self.engine
        names = ("start_s", "pull_s", "wake_s", "release_s", "report_s", "load_s")
        times = {name: getattr(engine, name) for name in names}
        trainer = self.trainer.model_dump(exclude={"source", "devices"}) | {"num_replicas": self.num_replicas}
        return WorldCosts(
            engine=self.engine_costs(),
            instance=InstanceTimes(**times),
            trainer=TrainerCosts(**trainer),
            reward=self.reward.costs(self.seed),
            num_prompts=self.lengths.num_prompts,
            prompt_length=engine.prompt_length,
            max_response_length=self.lengths.max_response_length,
            sharing=Sharing(rollout=engine.overlap_slowdown, training=engine.overlap_slowdown),
            sizes=self.costs_of_sizes(),
            ramp=self.ramp,
        )

    @property
    def ramp(self) -> Ramp | None:
        chosen = self.lengths.ramp
        most = self.lengths.max_response_length
        return None if chosen is None else Ramp(first=chosen.first, per_step=chosen.per_step, most=most)

    def make_lengths(self) -> Lengths:
        full, ramp = self._full_lengths(), self.ramp
        return full if ramp is None else RampedLengths(full, ramp)

    def _full_lengths(self) -> Lengths:
        chosen = self.lengths
        if chosen.trace is not None:
            return read_trace(chosen.trace, cap=chosen.trace_cap, seed=self.seed)
        fields = ("kind", "median", "between", "within", "long_share", "long_median", "drift")
        return DrawnLengths(seed=self.seed, **{name: getattr(chosen, name) for name in fields})
