"""The preset of a run as its settings let it work: what it brings, what is left out and why.

Settings of rewards that a preset brings are put into the settings when these are read (``with_rewards``), unless the
user gives them.
"""

from __future__ import annotations

from collections.abc import Collection

from tailrace.config import judge_use
from tailrace.config.device_kind import is_cpu
from tailrace.config.preset_parts import LENDING, NAMES, Circumstances, LeftOut, fitted
from tailrace.config.presets import Preset
from tailrace.config.settings import Settings
from tailrace.config.variants import ESTIMATORS
from tailrace.core.outcomes import Part
from tailrace.core.schedule import Placement
from tailrace.policies.strategies import Timeouts

HALF = "half"
"""The value of `reward.judge.memory_gb` that leaves half of the layers in host memory."""


def run_preset(settings: Settings) -> Preset:
    """Return the preset with the values that replace its own, without what cannot work."""
    return _fitted(settings, None)[0]


def left_out_lines(settings: Settings, parts: Collection[Part]) -> list[str]:
    """Return a line for each part that is left out. ``parts``: those that scores of the run have."""
    name = settings.schedule.preset
    asked = {name for name in ("timeouts", "offloads_judge") if _is_replaced(settings, name)}
    return [each.line(name) for each in _fitted(settings, parts)[1] if each.name not in asked]


def lending_line(settings: Settings, why: str) -> str:
    """Return the line of a run whose schedule lends instances and that has none to lend."""
    asked = settings.schedule.lending
    whose = settings.schedule.preset if asked is None else f"schedule.lending '{asked.value}'"
    return LeftOut(name="lending", what=LENDING, why=why).line(whose)


def with_rewards(settings: Settings) -> Settings:
    """Return the settings with what their preset says about rewards, where they do not say it themselves."""
    preset, reward = run_preset(settings), settings.reward
    tests, judge = reward.code_tests, reward.judge
    if preset.timeouts is not Timeouts.FIXED and "timeouts" not in tests.model_fields_set:
        tests = tests.model_copy(update={"timeouts": preset.timeouts.value})
    if preset.offloads_judge and "memory_gb" not in judge.model_fields_set:
        judge = judge.model_copy(update={"memory_gb": HALF})
    if (tests, judge) == (reward.code_tests, reward.judge):
        return settings
    return settings.model_copy(update={"reward": reward.model_copy(update={"code_tests": tests, "judge": judge})})


def circumstances(settings: Settings, parts: Collection[Part] | None = None) -> Circumstances:
    """``parts``: those that scores of the run have; None: not known yet."""
    sizes = set(settings.rollout.parallel_sizes)
    has_tests = parts is None or Part.TESTS in parts
    return Circumstances(
        placement=Placement(settings.schedule.placement),
        no_pieces=no_pieces(settings),
        no_places=no_places(settings) or _no_release(settings),
        no_sizes=None if len(sizes) > 1 else "there is one parallel size (rollout.parallel_sizes)",
        no_tests=None if has_tests else "no response is scored by code_tests",
        no_offload=_no_offload(settings, parts),
    )


def no_pieces(settings: Settings) -> str | None:
    """Why a batch cannot be trained in pieces; None if it can."""
    name = settings.algorithm.advantage_estimator
    if ESTIMATORS[name].whitens_batch:
        return f"{name} whitens advantages over the whole batch (algorithm.advantage_estimator)"
    if settings.rollout.deterministic:
        return "which groups are trained together depends on when they arrive (rollout.deterministic)"
    return None


def no_places(settings: Settings) -> str | None:
    """Why no instance can be lent, as far as the settings tell; None if they do not stand in the way."""
    if settings.schedule.placement == "disaggregated":
        return "rollout and training have devices of their own (schedule.placement)"
    if settings.trainer.num_replicas == 1:
        return "the trainer has one replica, which is not divided (trainer.num_replicas)"
    rollout = settings.rollout
    smallest = min(rollout.parallel_sizes, default=rollout.tensor_parallel_size)
    if rollout.num_instances * rollout.tensor_parallel_size // smallest == 1:
        return "there is one instance, which is not divided (rollout.num_instances)"
    return None


def _no_release(settings: Settings) -> str | None:
    """Why an instance cannot leave its device. Who asks for lending all the same is told so by the engine."""
    is_vllm_on_cpu = settings.rollout.engine == "vllm" and is_cpu(settings.model.device)
    return "vLLM does not release its memory on a CPU (rollout.engine)" if is_vllm_on_cpu else None


def _no_offload(settings: Settings, parts: Collection[Part] | None) -> str | None:
    judge = settings.reward.judge
    if not judge_use.may_use_judge(settings) or (parts is not None and Part.JUDGE not in parts):
        return "no response is scored by a judge"
    if judge.url is not None:
        return "the judge is behind a server (reward.judge.url)"
    if judge.placement == "own":
        return "the judge has a device of its own (reward.judge.placement)"
    return "on a CPU all layers are in its memory (model.device)" if is_cpu(settings.model.device) else None


def _fitted(settings: Settings, parts: Collection[Part] | None) -> tuple[Preset, tuple[LeftOut, ...]]:
    chosen = settings.schedule
    return fitted(chosen.resolved(), chosen.asked(NAMES), circumstances(settings, parts))


def _is_replaced(settings: Settings, name: str) -> bool:
    """Whether the user gave the settings that a part would bring another value."""
    reward = settings.reward
    return reward.code_tests.timeouts == "fixed" if name == "timeouts" else reward.judge.memory_gb is not None
