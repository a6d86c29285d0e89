"""Builds the schedule that a name in a scenario means."""

from __future__ import annotations

from dataclasses import replace

from tailrace.config import presets
from tailrace.config.preset_parts import Circumstances
from tailrace.config.rules import TRAIN_SOURCE
from tailrace.config.schedule_builder import apply_preset, fitted_preset, most_in_flight
from tailrace.core.costs import CostModel
from tailrace.core.schedule import (
    CaseTime,
    Coordination,
    EvalSet,
    Lending,
    Limits,
    Parallelism,
    Placement,
    Schedule,
    SharedPlace,
)
from tailrace.core.schedule.lending import places_by_order
from tailrace.policies.strategies import Timeouts
from tailrace.sim.parallel_sizes import parallelism_of
from tailrace.sim.scenario import Scenario, ScenarioError
from tailrace.sim.scenario_sections import VariantSection


def schedule_of(scenario: Scenario, name: str) -> Schedule:
    """Return the schedule of a preset or of one of the scenario's variants."""
    variant = _variant(scenario, name)
    try:
        plain, given = _given(scenario, variant)
        return apply_preset(plain, variant, given)
    except ValueError as error:
        raise ScenarioError(f"schedule '{name}': {error}") from None


def left_out_lines(scenario: Scenario, name: str) -> list[str]:
    """Return a line for each part of a preset that is left out, because the scenario has no use for it."""
    variant = _variant(scenario, name)
    plain, given = _given(scenario, variant)
    return [each.line(name) for each in fitted_preset(plain, variant, given)[1]]


def scenario_under(scenario: Scenario, name: str) -> Scenario:
    """Return the scenario with what this schedule changes of its rewards."""
    return scenario.under(_variant(scenario, name))


def _variant(scenario: Scenario, name: str) -> VariantSection:
    known = scenario.schedule.variants
    variant = known.get(name, VariantSection(preset=name))
    try:
        presets.check_trains(variant.preset, more=() if name in known else known)
    except ValueError as error:
        raise ScenarioError(str(error)) from None
    return _with_preset(scenario, variant)


def _with_preset(scenario: Scenario, variant: VariantSection) -> VariantSection:
    """Return the variant with the rewards that its preset brings: they come before those of the scenario, and behind
    those that the variant gives itself."""
    preset, chosen = variant.resolved(), variant.reward
    tests, judge = chosen.code_tests, chosen.judge
    if preset.timeouts is not Timeouts.FIXED and tests.timeouts is None and scenario.reward.code_tests is not None:
        tests = tests.model_copy(update={"timeouts": preset.timeouts.value})
    if preset.offloads_judge and judge.placement is None and scenario.reward.judge is not None:
        judge = judge.model_copy(update={"placement": "shared"})
    return variant.model_copy(update={"reward": chosen.model_copy(update={"code_tests": tests, "judge": judge})})


def _given(scenario: Scenario, variant: VariantSection) -> tuple[Schedule, Circumstances]:
    """Return what the scenario decides, and what that leaves of a preset."""
    under = scenario.under(variant)
    plain, judge = _plain(under, variant), under.reward.judge
    given = Circumstances(
        placement=plain.placement,
        no_places=None if len(plain.lending.places) > 1 else "there are no two places to lend (trainer.num_replicas)",
        no_sizes=None if len(plain.parallelism.layouts) > 1 else "the scenario has one parallel size",
        no_tests=None if under.reward.code_tests is not None else "no response is scored by test cases",
        no_offload="no response is scored by a judge"
        if judge is None
        else "the judge has devices of its own"
        if judge.is_apart
        else None,
    )
    return plain, given


def _plain(scenario: Scenario, variant: VariantSection) -> Schedule:
    """Return what the scenario decides. The preset's part is still missing."""
    chosen, engine, tests = scenario.schedule, scenario.engine, scenario.reward.code_tests
    evaluated = (EvalSet(name="eval", num_prompts=chosen.eval_prompts, group_size=1),) if chosen.eval_prompts else ()
    return Schedule(
        train_source=TRAIN_SOURCE,
        batch_size=chosen.rollout_batch_size,
        group_size=chosen.n_samples_per_prompt,
        max_steps=chosen.num_steps,
        placement=engine.placement,
        num_instances=scenario.num_instances,
        max_in_flight=most_in_flight(engine.max_running),
        eval_sets=evaluated,
        eval_interval=chosen.eval_interval,
        save_interval=chosen.save_interval,
        score_parts=scenario.reward.costs(scenario.seed).parts,
        case_time=CaseTime() if tests is None else tests.case_time(),
        is_reward_streamed=variant.reward.timing == "streamed",
        filters_equal_scores=chosen.dynamic_sampling,
        lending=Lending(max_length=scenario.lengths.max_response_length, places=_places(scenario)),
        parallelism=_parallelism(scenario),
        coordination=_coordination(scenario),
        # Time limits are switched off, except for those that detect a dead instance.
        limits=replace(Limits(), reward_s=1e6, train_s=1e6, weights_s=1e6, checkpoint_s=1e6),
    )


def _places(scenario: Scenario) -> tuple[SharedPlace, ...]:
    """Return what can be lent to training. Instances and replicas share the devices by order."""
    is_apart = scenario.engine.placement is Placement.DISAGGREGATED
    return () if is_apart else places_by_order(scenario.num_instances, scenario.num_replicas)


def _parallelism(scenario: Scenario) -> Parallelism:
    """Return the sizes between which the schedule may choose."""
    is_apart = scenario.engine.placement is Placement.DISAGGREGATED
    return parallelism_of(
        scenario.engine,
        {size: costs.engine for size, costs in scenario.costs_of_sizes().items()},
        num_instances=scenario.num_instances,
        num_replicas=None if is_apart else scenario.num_replicas,
        max_in_flight=most_in_flight(scenario.engine.max_running),
    )


def _coordination(scenario: Scenario) -> Coordination:
    """Return the numbers that strategies use. Their cost model is exactly that of the simulated engines."""
    engine = scenario.engine
    return Coordination(
        costs=CostModel(**{name: getattr(engine, name) for name in ("k1", "k2", "k3", "k4", "prefill_s")}),
        kv_tokens=scenario.kv_capacity,
        max_running=engine.max_running,
        prompt_length=engine.prompt_length,
        plan_interval_s=engine.plan_interval_s,
    )
