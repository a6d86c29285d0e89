"""Makes schedules: of a run from its settings and the number of usable prompts, of a simulation and of a replay.

What a preset and its overrides decide is put into a schedule by ``apply_preset``, for all three.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tailrace.config import presets
from tailrace.config.code_settings import CodeTestsSettings
from tailrace.config.complaints import SettingsError
from tailrace.config.parallel_layouts import parallelism_of
from tailrace.config.preset_parts import NAMES, Circumstances, LeftOut, fitted
from tailrace.config.presets import ROLLOUT_ONLY, Preset
from tailrace.config.reward_settings import RewardSettings
from tailrace.config.rules import TRAIN_SOURCE
from tailrace.config.run_preset import circumstances
from tailrace.config.schedule_overrides import ScheduleOverrides
from tailrace.config.settings import Settings
from tailrace.core.costs import CostModel
from tailrace.core.outcomes import Part
from tailrace.core.schedule import (
    CaseTime,
    Coordination,
    EpochEnd,
    EvalSet,
    Lending,
    Limits,
    OnStuck,
    Placement,
    Schedule,
    VersionCap,
)
from tailrace.core.schedule.soundness import sound
from tailrace.policies.strategies import policies_of

_SAVE_SHARE = 0.03
"""Largest share of the time that checkpoints take by default."""
_REWARD_GRACE_S = 120.0
"""Extra seconds for a reward, because its process may have to be restarted first."""


def schedule(
    settings: Settings,
    num_prompts: Mapping[str, int],
    *,
    prompt_length: int,
    score_parts: tuple[Part, ...] = (Part.FUNCTION,),
) -> Schedule:
    """Build a schedule. ``num_prompts``: usable prompts of each source; ``prompt_length``: tokens of a typical one."""
    make = _rollout_only if settings.schedule.preset == ROLLOUT_ONLY else _training
    try:
        coordination = _coordination(settings, prompt_length)
        made = make(settings, num_prompts)
        sizes = parallelism_of(settings, coordination, max_in_flight=made.max_in_flight)
        plain = replace(made, coordination=coordination, parallelism=sizes, score_parts=score_parts)
        return apply_preset(plain, settings.schedule, circumstances(settings, score_parts))
    except ValueError as error:
        raise SettingsError(f"the schedule does not work: {error}") from error


def fitted_preset(
    plain: Schedule, chosen: ScheduleOverrides, given: Circumstances | None = None
) -> tuple[Preset, tuple[LeftOut, ...]]:
    """Return the preset with its overrides, and what is left out of it. ``given``: default: as the schedule tells,
    which a journal has recorded."""
    given = Circumstances.recorded(plain) if given is None else given
    return fitted(chosen.resolved(), chosen.asked(NAMES), given)


def apply_preset(plain: Schedule, chosen: ScheduleOverrides, given: Circumstances | None = None) -> Schedule:
    """Return a schedule with what a preset and its overrides decide; ``ValueError`` if the result cannot work.

    ``given``: as for ``fitted_preset``.
    """
    preset, _ = fitted_preset(plain, chosen, given)
    sizes = {"batch_size": plain.batch_size, "group_size": plain.group_size}
    launch_prompts, launch_responses = presets.launch_sizes(preset, **sizes)
    made = replace(
        plain,
        launch_prompts=launch_prompts,
        launch_responses=launch_responses,
        trials=presets.trials(preset, chosen.over_provision_trials, **sizes),
        leftovers=preset.leftovers,
        max_staleness=preset.max_staleness,
        admission=preset.bound,
        rounds_ahead=preset.rounds_ahead,
        stream=preset.stream,
        stream_groups=presets.stream_groups(preset.stream, chosen.stream_share, batch_size=plain.batch_size),
        lending=replace(plain.lending, strategy=preset.lending.value, at=chosen.lend_at),
        parallelism=replace(
            plain.parallelism,
            strategy=preset.parallelism.value,
            horizon=None if chosen.parallel_horizon == "any" else chosen.parallel_horizon,
        ),
        coordination=replace(plain.coordination, **presets.strategies(preset)),
        keep_deferred_tokens=chosen.keep_deferred_tokens,
        max_versions_per_sample=chosen.max_versions_per_sample,
        version_cap=VersionCap(chosen.on_version_cap),
        max_restarts_per_sample=chosen.max_restarts_per_sample,
        max_stuck_s=chosen.max_stuck_s,
        on_stuck=OnStuck(chosen.on_stuck),
    )
    made = sound(replace(made, has_quotas=made.has_quotas and made.aborts_leftovers))
    policies_of(made)  # refuses strategies that cannot work with the rest
    return made


def most_in_flight(max_running: int) -> int:
    """Most responses that an instance has at the same time, if it can generate ``max_running`` of them at once."""
    return 2 * max_running  # so that it never waits for the controller to hand it the next response


def _training(settings: Settings, num_prompts: Mapping[str, int]) -> Schedule:
    """Return what the run alone decides. The preset's part is still missing."""
    rollout, limits, asked = settings.rollout, settings.limits, settings.schedule
    return Schedule(
        train_source=TRAIN_SOURCE,
        batch_size=asked.rollout_batch_size,
        group_size=rollout.n_samples_per_prompt,
        max_steps=max_steps(settings, num_prompts[TRAIN_SOURCE]),
        placement=Placement(asked.placement),
        epoch_end=EpochEnd(asked.epoch_end),
        epoch_size=num_prompts[TRAIN_SOURCE],
        has_quotas=asked.source_quotas and len(settings.data.sources) > 1,
        num_instances=rollout.num_instances,
        max_in_flight=most_in_flight(rollout.running_limit),
        eval_sets=tuple(
            EvalSet(name=s.name, num_prompts=num_prompts[s.name], group_size=s.n_samples_per_prompt)
            for s in settings.eval
        ),
        eval_interval=settings.eval_interval,
        save_interval=None if settings.save_interval == "auto" else settings.save_interval,
        save_share=_SAVE_SHARE if settings.save_interval == "auto" else 0.0,
        is_reward_streamed=settings.reward.timing == "streamed",
        lending=Lending(max_length=rollout.max_response_length),
        case_time=_case_time(settings.reward.code_tests),
        drops_failed_rewards=settings.reward.on_failure == "drop",
        filters_equal_scores=settings.algorithm.dynamic_sampling,
        max_useless_groups=settings.algorithm.max_useless_groups,
        limits=Limits(
            start_s=limits.start_s,
            progress_s=limits.progress_s,
            stall_s=limits.stall_s,
            reward_s=_function_limit_s(settings.reward) + _REWARD_GRACE_S,
            tests_s=settings.reward.code_tests.timeout_s + _REWARD_GRACE_S,
            judge_s=settings.reward.judge.timeout_s + limits.start_s + _REWARD_GRACE_S,
            train_s=limits.train_s,
            weights_s=limits.weights_s,
            checkpoint_s=limits.checkpoint_s,
            max_restarts=limits.max_restarts,
            stop_s=limits.stop_s,
        ),
    )


def _function_limit_s(reward: RewardSettings) -> float:
    """Most seconds that the reward functions may take for one response."""
    given = reward.functions or (None,)
    return sum((function and function.timeout_s) or reward.timeout_s for function in given)


def _case_time(code: CodeTestsSettings) -> CaseTime:
    return CaseTime(
        strategy=code.timeouts,
        most_s=code.case_timeout_s,
        least_s=min(code.min_case_timeout_s, code.case_timeout_s),
        factor=code.timeout_factor,
        probe_share=code.timeout_probe_share,
    )


def _coordination(settings: Settings, prompt_length: int) -> Coordination:
    rollout, asked = settings.rollout, settings.schedule.coordination
    longest = settings.data.max_prompt_length + rollout.max_response_length
    return Coordination(
        **asked.model_dump(exclude={"validation"}),
        costs=CostModel(**rollout.costs.model_dump()),
        is_global=asked.validation == "global",
        kv_tokens=rollout.kv_tokens or rollout.running_limit * longest // 2,
        max_running=rollout.running_limit,
        prompt_length=prompt_length,
    )


def _rollout_only(settings: Settings, num_prompts: Mapping[str, int]) -> Schedule:
    """A schedule that evaluates the training prompts once and trains nothing.

    The prompts keep their ids, so a training run with the same prompts finds the saved responses.
    """
    count, available = settings.schedule.num_prompts, num_prompts[TRAIN_SOURCE]
    if count is not None and count > available:
        raise SettingsError(f"schedule.num_prompts is {count}, but there are only {available} prompts")
    group_size = settings.rollout.n_samples_per_prompt
    return replace(
        _training(settings, num_prompts),
        train_source="",
        eval_sets=(EvalSet(name=TRAIN_SOURCE, num_prompts=count or available, group_size=group_size),),
        eval_interval=1,
    )


def max_steps(settings: Settings, num_prompts: int) -> int:
    """Optimizer steps of the whole run."""
    if settings.schedule.preset == ROLLOUT_ONLY:
        return 0
    if settings.schedule.max_steps is not None:
        return settings.schedule.max_steps
    num_epochs, batch_size = settings.schedule.num_epochs, settings.schedule.rollout_batch_size
    if EpochEnd(settings.schedule.epoch_end) is EpochEnd.FLUSH:
        return num_epochs * math.ceil(num_prompts / batch_size)  # each epoch ends with the prompts that are left
    steps = num_prompts * num_epochs // batch_size
    if steps == 0:
        raise SettingsError(
            f"{num_prompts} prompts and {num_epochs} epochs do not fill one batch of"
            f" {batch_size} prompts; set schedule.max_steps or a smaller rollout_batch_size"
        )
    return steps
