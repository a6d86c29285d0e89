"""A scenario: the schedules to simulate, the costs and the response lengths.

All schedules of a scenario have the same costs and the same lengths. The methods return variants of a scenario with
other lengths, seeds, numbers of steps or devices.
"""

from __future__ import annotations

from tailrace.config.complaints import SettingsError
from tailrace.core.schedule import Placement
from tailrace.sim.engine_costs import EngineCosts
from tailrace.sim.instance import InstanceTimes
from tailrace.sim.lengths import DrawnLengths, Lengths, read_trace
from tailrace.sim.reward_model import RewardCosts, RewardKind
from tailrace.sim.scenario_sections import (
    EngineSection,
    FaultSection,
    GridEntry,
    LengthsSection,
    RewardSection,
    ScheduleSection,
    Sourced,
    TrainerSection,
)
from tailrace.sim.trainer_model import TrainerCosts
from tailrace.sim.world import Sharing, WorldCosts


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
            "reward": ("num_workers",),
        }
        sections = {}
        for name, counts in fields.items():
            section = getattr(self, name)
            sections[name] = section.model_copy(update={count: factor * getattr(section, count) for count in counts})
        return self.model_copy(update=sections)

    def world_costs(self) -> WorldCosts:
        engine = self.engine
        costs = {name: getattr(engine, name) for name in EngineCosts.__slots__}
        times = {name: getattr(engine, name) for name in ("start_s", "pull_s", "release_s", "report_s", "load_s")}
        trainer = self.trainer.model_dump(exclude={"source", "devices"})
        kinds = tuple(RewardKind(**kind.model_dump()) for kind in self.reward.kinds)
        reward = self.reward.model_dump(exclude={"source", "kinds"})
        return WorldCosts(
            engine=EngineCosts(**costs),
            instance=InstanceTimes(**times),
            trainer=TrainerCosts(**trainer),
            reward=RewardCosts(seed=self.seed, kinds=kinds, **reward),
            num_prompts=self.lengths.num_prompts,
            prompt_length=engine.prompt_length,
            max_response_length=self.lengths.max_response_length,
            sharing=Sharing(rollout=engine.overlap_slowdown, training=engine.overlap_slowdown),
        )

    def make_lengths(self) -> Lengths:
        chosen = self.lengths
        if chosen.trace is not None:
            return read_trace(chosen.trace, cap=chosen.trace_cap, seed=self.seed)
        fields = ("kind", "median", "between", "within", "long_share", "long_median", "drift")
        return DrawnLengths(seed=self.seed, **{name: getattr(chosen, name) for name in fields})
