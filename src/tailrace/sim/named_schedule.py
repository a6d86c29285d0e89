"""Builds the schedule that a name in a scenario means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tailrace.config import presets
from tailrace.core.costs import CostModel
from tailrace.core.schedule import Coordination, EvalSet, Limits, OnStuck, Schedule
from tailrace.policies.strategies import policies_of
from tailrace.sim.scenario import Scenario, ScenarioError
from tailrace.sim.scenario_sections import VariantSection

TRAIN_SOURCE = "train"


def schedule_of(scenario: Scenario, name: str) -> Schedule:
    """Return the schedule of a preset or of one of the scenario's variants."""
    chosen = scenario.schedule
    variant = chosen.variants.get(name, VariantSection(preset=name))
    try:
        presets.check_trains(variant.preset, more=() if name in chosen.variants else chosen.variants)
    except ValueError as error:
        raise ScenarioError(str(error)) from None
    preset = presets.resolved(variant)
    fields = presets.schedule_fields(
        preset,
        batch_size=chosen.rollout_batch_size,
        group_size=chosen.n_samples_per_prompt,
        trial_factors=variant.over_provision_trials,
    )
    try:
        made = Schedule(
            **_base(scenario),
            **fields,
            coordination=_coordination(scenario, preset),
            keeps_deferred_tokens=bool(variant.keeps_deferred_tokens),
            max_versions_per_sample=variant.max_versions_per_sample,
            max_stuck_s=variant.max_stuck_s,
            on_stuck=OnStuck(variant.on_stuck),
            is_reward_streamed=variant.rewards == "streamed",
        )
        policies_of(made)  # refuses strategies that cannot work with the rest
    except ValueError as error:
        raise ScenarioError(f"schedule '{name}': {error}") from None
    return made


def _coordination(scenario: Scenario, preset: presets.Preset) -> Coordination:
    """Return the settings of the strategies. Their cost model is exactly that of the simulated engines."""
    engine = scenario.engine
    return Coordination(
        **presets.strategies(preset),
        costs=CostModel(**{name: getattr(engine, name) for name in ("k1", "k2", "k3", "k4", "prefill_s")}),
        kv_tokens=engine.kv_capacity,
        max_running=engine.max_running,
        prompt_length=engine.prompt_length,
        plan_interval_s=engine.plan_interval_s,
    )


def _base(scenario: Scenario) -> dict[str, Any]:
    chosen, engine = scenario.schedule, scenario.engine
    evaluated = (EvalSet(name="eval", num_prompts=chosen.eval_prompts, group_size=1),) if chosen.eval_prompts else ()
    return {
        "train_source": TRAIN_SOURCE,
        "max_steps": chosen.num_steps,
        "placement": engine.placement,
        "num_instances": engine.num_instances,
        "max_in_flight": engine.max_running,
        "filters_equal_scores": chosen.dynamic_sampling,
        "eval_sets": evaluated,
        "eval_interval": chosen.eval_interval,
        "save_interval": chosen.save_interval,
        # Time limits are switched off, except for those that detect a dead instance.
        "limits": replace(Limits(), reward_s=1e6, train_s=1e6, weights_s=1e6, checkpoint_s=1e6),
    }
