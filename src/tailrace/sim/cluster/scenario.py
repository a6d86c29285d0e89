"""A cluster scenario: devices, models, jobs and faults, and the rules to compare on them.

All rules of a scenario get the same jobs, with the same times. The devices are the same too, but they are divided by
the number of jobs that may share a node group.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from pydantic import field_validator, model_validator

from tailrace.cluster.events import ClusterStarted
from tailrace.cluster.ids import JobId, NodeGroupId, NodeId, TenantId
from tailrace.cluster.job_spec import ALL_PARTS, JobSpec, Parts, StateBytes, StatePart
from tailrace.cluster.settings import ClusterRules, NodeGroup, Policy, Transfers
from tailrace.sim.cluster.arrivals import JobArrivals, mixed_models, submission_times
from tailrace.sim.cluster.faults import Fault
from tailrace.sim.cluster.group_memory import Bandwidths
from tailrace.sim.cluster.job_model import JobPlan
from tailrace.sim.cluster.partition import ModelDemand, Partition, divide, explicit, jobs_per_group
from tailrace.sim.cluster.scenario_sections import (
    GB,
    ClusterFaultSection,
    ClusterSection,
    JobsSection,
    ModelSection,
    RulesSection,
)
from tailrace.sim.cluster.step_times import Overlap, StateUse, StepTimes, demand_trace, draw_steps
from tailrace.sim.section import Sourced


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Everything that one simulation needs."""

    first: ClusterStarted
    plans: tuple[JobPlan, ...]
    bandwidths: Bandwidths
    faults: tuple[Fault, ...]
    partition: Partition


class ClusterScenario(Sourced):
    name: str
    seed: int = 0
    cluster: ClusterSection
    rules: RulesSection
    models: tuple[ModelSection, ...]
    jobs: JobsSection
    faults: tuple[ClusterFaultSection, ...] = ()

    @field_validator("jobs")
    @classmethod
    def _rates(cls, jobs: JobsSection) -> JobsSection:
        if jobs.max_steps < jobs.min_steps:
            raise ValueError(f"max_steps is {jobs.max_steps}, below min_steps, {jobs.min_steps}")
        if (jobs.arrivals is not JobArrivals.BACKLOG) != ((jobs.load is None) != (jobs.rate_per_hour is None)):
            raise ValueError("arrivals other than backlog need either load or rate_per_hour, a backlog neither")
        return jobs

    @model_validator(mode="after")
    def _consistent(self) -> ClusterScenario:
        names = [model.name for model in self.models]
        for where, found in (("jobs.mix", self.jobs.mix), ("cluster.groups", self.cluster.groups)):
            if unknown := [name for name in found if name not in names]:
                raise ValueError(f"{where} names {unknown[0]!r}, but the models are {', '.join(names)}")
        if (self.cluster.total_devices is None) == (not self.cluster.groups):
            raise ValueError("cluster needs either total_devices or groups")
        if self.jobs.load is not None and self.cluster.total_devices is None:
            raise ValueError("jobs.load needs cluster.total_devices; give rate_per_hour instead")
        for model in self.models:
            self.cycle_of(model)
        for name in (*self.rules.compare, *self.rules.variants):
            self.partition_of(self.rules_of(name))
        if wrong := [fault.job for fault in self.faults if fault.job >= self.jobs.count]:
            raise ValueError(f"a fault names job {wrong[0]}, but the last one is {self.jobs.count - 1}")
        if lost := [fault.node for fault in self.faults if fault.kind == "node" and not self._has_node(fault.node)]:
            raise ValueError(f"a fault names node {lost[0]!r}; nodes are called MODEL-GROUP/NODE, such as 7B-0/0")
        return self

    def _has_node(self, node: str) -> bool:
        """Return whether every set of rules to compare has this node."""
        partitions = [self.partition_of(self.rules_of(name)) for name in self.rules.compare]
        return all(any(node in group.nodes for group in self._groups(partition)) for partition in partitions)

    def with_seed(self, seed: int) -> ClusterScenario:
        return self.model_copy(update={"seed": seed})

    def with_steps(self, num_steps: int) -> ClusterScenario:
        """Return the same scenario with this many steps in every job."""
        return self.with_jobs(min_steps=num_steps, max_steps=num_steps)

    def with_jobs(self, **changes: Any) -> ClusterScenario:
        return self._with("jobs", changes)

    def with_cluster(self, **changes: Any) -> ClusterScenario:
        return self._with("cluster", changes)

    def with_rules(self, **changes: Any) -> ClusterScenario:
        return self._with("rules", changes)

    def _with(self, section: str, changes: dict[str, Any]) -> ClusterScenario:
        data = self.model_dump()
        return ClusterScenario.model_validate(data | {section: data[section] | changes})

    def rules_of(self, name: str) -> ClusterRules:
        """Return the rules that a policy or a variant means. ``ValueError``: there is none of this name."""
        section = self.rules
        if name not in section.variants and name not in list(Policy):
            known = ", ".join([*Policy, *section.variants])
            raise ValueError(f"there are no rules {name!r}; known are {known}")
        values = section.model_dump(exclude={"source", "compare", "variants", "tenants"}, exclude_none=True)
        if name in section.variants:
            values |= section.variants[name].model_dump(exclude_none=True)
        else:
            values["policy"] = Policy(name)
        transfers = Transfers(bytes_per_s=self.cluster.transfer_gb_per_s * GB, fixed_s=self.cluster.transfer_fixed_s)
        tenants = tuple((TenantId(tenant), weight) for tenant, weight in section.tenants.items())
        return ClusterRules(**values, tenants=tenants, transfers=transfers)

    def cycle_of(self, model: ModelSection) -> tuple[StepTimes, ...]:
        """Return the steps of the model that repeat."""
        if model.steps:
            return tuple(StepTimes(rollout_s=rollout, operations_s=tuple(rest)) for rollout, *rest in model.steps)
        given = (model.cycle_s, model.logprob_s, model.update_s, model.sync_s)
        if None in given:
            raise ValueError(f"model {model.name} needs cycle_s, logprob_s, update_s and sync_s, or steps")
        cycle_s, *operations = (value for value in given if value is not None)
        is_serial = self.jobs.overlap is Overlap.SERIAL
        if cycle_s < sum(operations) or (is_serial and cycle_s == sum(operations)):
            raise ValueError(
                f"model {model.name}: a cycle of {cycle_s:g} s is too short for its operations, which take"
                f" {sum(operations):g} s{' and leave no time for rollout' if is_serial else ''}"
            )
        busy_s = sum(operations) if is_serial else operations[-1]
        return (StepTimes(rollout_s=cycle_s - busy_s, operations_s=tuple(operations)),)

    def partition_of(self, rules: ClusterRules) -> Partition:
        demands = [self._demand(model) for model in self.models if self.jobs.mix.get(model.name)]
        sharing = {
            each.model: jobs_per_group(
                each.duty, policy=rules.policy, max_jobs=rules.max_jobs_per_group, max_duty=rules.max_duty
            )
            for each in demands
        }
        if self.cluster.total_devices is not None:
            return divide(demands, self.cluster.total_devices, sharing)
        return explicit(demands, {each.model: self.cluster.groups.get(each.model, 0) for each in demands}, sharing)

    def setup(self, name: str) -> Setup:
        rules = self.rules_of(name)
        partition = self.partition_of(rules)
        first = ClusterStarted(rules=rules, groups=self._groups(partition), rollout_devices=partition.rollout_devices)
        plans = self.plans()
        ids = tuple(plan.spec.id for plan in plans)
        cluster = self.cluster
        bandwidths = Bandwidths(
            device=cluster.transfer_gb_per_s * GB, disk=cluster.disk_gb_per_s * GB, fixed_s=cluster.transfer_fixed_s
        )
        faults = tuple(section.fault(ids) for section in self.faults)
        return Setup(first=first, plans=plans, bandwidths=bandwidths, faults=faults, partition=partition)

    def plans(self) -> tuple[JobPlan, ...]:
        """Return the jobs. They are the same for all rules."""
        jobs = self.jobs
        draw = Random(f"{self.seed}/jobs")
        models = {model.name: model for model in self.models}
        names = mixed_models(jobs.mix, jobs.count, draw)
        rate = 0.0 if jobs.arrivals is JobArrivals.BACKLOG else self._rate_per_s()
        times = submission_times(jobs.arrivals, jobs.count, rate_per_s=rate, burst_size=jobs.burst_size, draw=draw)
        return tuple(
            self._plan(models[name], index, submitted, draw)
            for index, (name, submitted) in enumerate(zip(names, times, strict=True))
        )

    def _plan(self, model: ModelSection, index: int, submitted: float, draw: Random) -> JobPlan:
        jobs = self.jobs
        steps, is_known = draw.randint(jobs.min_steps, jobs.max_steps), draw.random() < jobs.known_share
        tenant = draw.choices([*jobs.tenants], [*jobs.tenants.values()])[0] if jobs.tenants else "default"
        cycle = self.cycle_of(model)
        spec = JobSpec(
            id=JobId(f"{index}-{model.name}"),
            train_devices=model.train_devices,
            rollout_devices=model.rollout_devices,
            steps=steps,
            trace=demand_trace(cycle, jobs.overlap, _use(model)) if is_known else None,
            state=_state(model),
            host_parts=_host_parts(model),
            tenant=TenantId(tenant),
        )
        actual = draw_steps(cycle, steps, draw=Random(f"{self.seed}/{index}"), jitter=jobs.jitter)
        return JobPlan(
            spec=spec,
            model=model.name,
            overlap=jobs.overlap,
            cycle=cycle,
            steps=actual,
            use=_use(model),
            submitted=submitted,
        )

    def _demand(self, model: ModelSection) -> ModelDemand:
        trace = demand_trace(self.cycle_of(model), self.jobs.overlap, _use(model))
        share = self.jobs.mix[model.name] / sum(self.jobs.mix.values())
        mean_steps = (self.jobs.min_steps + self.jobs.max_steps) / 2
        return ModelDemand(
            model=model.name,
            train_devices=model.train_devices,
            rollout_devices=model.rollout_devices,
            duty=trace.duty,
            work_s=share * mean_steps * trace.step_s,
        )

    def _rate_per_s(self) -> float:
        if self.jobs.rate_per_hour is not None:
            return self.jobs.rate_per_hour / 3600
        assert self.jobs.load is not None
        groups = self.partition_of(self.rules_of(Policy.ISOLATED)).groups
        demands = [self._demand(model) for model in self.models if self.jobs.mix.get(model.name)]
        return self.jobs.load * min(groups[each.model] / each.work_s for each in demands)

    def _groups(self, partition: Partition) -> tuple[NodeGroup, ...]:
        cluster, groups = self.cluster, []
        for model in self.models:
            num_nodes = -(-model.train_devices // cluster.devices_per_node)
            on_devices = (part for part in ALL_PARTS if part not in _host_parts(model))
            state = _state(model).of(on_devices)
            for index in range(partition.groups.get(model.name, 0)):
                name = NodeGroupId(f"{model.name}-{index}")
                group = NodeGroup(
                    id=name,
                    nodes=tuple(NodeId(f"{name}/{node}") for node in range(num_nodes)),
                    devices=model.train_devices,
                    device_bytes=round(cluster.room_for_states * state),
                    host_bytes=_gigabytes(cluster.host_gb_per_node, num_nodes),
                    disk_bytes=_gigabytes(cluster.disk_gb_per_node, num_nodes),
                )
                groups.append(group)
        return tuple(groups)


def _state(model: ModelSection) -> StateBytes:
    return StateBytes(
        weights=round(model.weights_gb * GB),
        gradients=round(model.gradients_gb * GB),
        optimizer=round(model.optimizer_gb * GB),
    )


def _use(model: ModelSection) -> StateUse:
    return StateUse(is_lazy=model.lazy_state, host_step_s=model.host_step_s)


def _host_parts(model: ModelSection) -> Parts:
    return (StatePart.OPTIMIZER,) if model.host_step_s else ()


def _gigabytes(per_node: float | None, num_nodes: int) -> int | None:
    return None if per_node is None else round(per_node * num_nodes * GB)
