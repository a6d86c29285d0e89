"""Fits the costs of the engines, and the times of their instances."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from tailrace.core.costs import PrefillWork
from tailrace.observe.costs.fitting import ErrorScale, fit_engine, fit_prefill, sample_s
from tailrace.observe.costs.token_clock import EngineSample
from tailrace.sim.engine_costs import EngineCosts
from tailrace.sim.fitting.machine_facts import MachineFacts
from tailrace.sim.fitting.overlap import FittedApart, fit_apart, mean, warm
from tailrace.sim.instance import InstanceTimes
from tailrace.sim.observations import Observations


def fit_engines(seen: Observations, machine: MachineFacts) -> FittedApart[EngineCosts]:
    return fit_apart(
        warm(undisturbed(seen)),
        lambda samples: _fit(samples, seen.prefill, machine),
        sample_s,
        unseen=machine.sharing.rollout,
    )


def undisturbed(seen: Observations) -> Sequence[EngineSample]:
    """Return the samples during which no other process started; all samples if there is none."""
    return [sample for sample in seen.engine if not sample.is_beside_start] or seen.engine


def fit_instance(seen: Observations, engine: EngineCosts, machine: MachineFacts) -> InstanceTimes:
    """An engine is given work as soon as it has started, so its warm-up counts as part of the start."""
    warm_up_s = mean([x.seconds - sample_s(engine, x) for x in seen.engine if x.is_first])
    return InstanceTimes(
        start_s=mean(seen.instance_start_s) + max(warm_up_s, 0.0),
        pull_s=mean(seen.pull_s),
        release_s=mean(seen.release_s),
        report_s=machine.report_s,
    )


def _fit(samples: Sequence[EngineSample], prefill: Sequence[PrefillWork], machine: MachineFacts) -> EngineCosts:
    measured = fit_prefill(prefill) if machine.shares_prompts else None
    costs = fit_engine(samples, ErrorScale.SECONDS, shares_prompts=machine.shares_prompts, prefill=measured)
    return EngineCosts(
        **asdict(costs),
        kv_capacity=machine.kv_capacity,
        max_running=machine.max_running,
        prefill_chunk=machine.prefill_chunk,
        length_classes=machine.length_classes,
    )
