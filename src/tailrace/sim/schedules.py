"""From a name in a scenario to the coordinator's schedule."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from tailrace.core.admission import Admission
from tailrace.core.schedule import EvalSet, Leftovers, Limits, Schedule
from tailrace.sim.scenario import Scenario, ScenarioError, VariantSection

TRAIN_SOURCE = "train"

_PRESETS: dict[str, dict[str, Any]] = {
    "sync": {},
    "tail-batching": {"over_provision": (1.25, 1.25), "leftovers": Leftovers.DEFER},
    "active-partial": {
        "over_provision": (2.0, 1.0),
        "leftovers": Leftovers.RESUME,
        "max_staleness": None,
        "admission": Admission.UNBOUNDED,
    },
    "one-step": {"max_staleness": 1, "rounds_ahead": 1},
    "async-cap": {"leftovers": Leftovers.KEEP, "max_staleness": 1, "admission": Admission.COUNT},
}


def schedule_of(scenario: Scenario, name: str) -> Schedule:
    """The schedule of a preset or of one of the scenario's variants."""
    variant = scenario.schedule.variants.get(name, VariantSection(preset=name))
    if variant.preset not in _PRESETS:
        known = ", ".join([*_PRESETS, *scenario.schedule.variants])
        raise ScenarioError(f"no schedule '{variant.preset}'; there are {known}")
    fields = dict(_PRESETS[variant.preset])
    prompts, responses = fields.pop("over_provision", (1.0, 1.0))
    prompts = variant.over_provision_prompts or prompts
    responses = variant.over_provision_responses or responses
    chosen = scenario.schedule
    for field in ("leftovers", "rounds_ahead", "keeps_deferred_tokens", "max_versions_per_sample"):
        if (value := getattr(variant, field)) is not None:
            fields[field] = value
    if variant.max_staleness == "unbounded":
        fields |= {"max_staleness": None, "admission": Admission.UNBOUNDED}
    elif variant.max_staleness is not None:
        is_counted = fields.get("admission") is Admission.COUNT
        fields |= {
            "max_staleness": variant.max_staleness,
            "admission": Admission.COUNT if is_counted else Admission.DEADLINE,
        }
    try:
        return Schedule(
            **_base(scenario),
            launch_prompts=math.floor(prompts * chosen.rollout_batch_size + 1e-9),
            launch_responses=math.ceil(responses * chosen.n_samples_per_prompt - 1e-9),
            is_reward_streamed=variant.rewards == "streamed",
            **fields,
        )
    except ValueError as error:
        raise ScenarioError(f"schedule '{name}': {error}") from None


def _base(scenario: Scenario) -> dict[str, Any]:
    chosen, engine = scenario.schedule, scenario.engine
    evaluated = (EvalSet(name="eval", num_prompts=chosen.eval_prompts, group_size=1),) if chosen.eval_prompts else ()
    return {
        "train_source": TRAIN_SOURCE,
        "batch_size": chosen.rollout_batch_size,
        "group_size": chosen.n_samples_per_prompt,
        "max_steps": chosen.num_steps,
        "placement": engine.placement,
        "num_instances": engine.num_instances,
        "max_in_flight": engine.max_running,
        "filters_equal_scores": chosen.dynamic_sampling,
        "eval_sets": evaluated,
        "eval_interval": chosen.eval_interval,
        "save_interval": chosen.save_interval,
        # Waits in virtual time are part of what is simulated; only a dead instance may end one.
        "limits": replace(Limits(), reward_s=1e6, train_s=1e6, weights_s=1e6, checkpoint_s=1e6),
    }
