"""Settings of the rewards."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from tailrace.config.code_settings import CodeTestsSettings
from tailrace.config.judge_settings import JudgeSettings
from tailrace.config.section import Common, Seconds, Section, as_tuple

RewardTiming = Literal["streamed", "barrier"]


class RewardFunctionSettings(Section):
    """One reward function."""

    function: Common[str]
    """Name of the function, as in `reward.functions`."""
    weight: Common[float] = 1.0
    """Factor that multiplies this function's score."""
    timeout_s: Common[Seconds | None] = None
    """Seconds that this function may take for one response. Default: `reward.timeout_s`. `code_tests` and `judge` have
    limits of their own."""

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return {"function": value} if isinstance(value, str) else value


class RewardSettings(Section):
    """How responses are scored."""

    functions: Common[Annotated[tuple[RewardFunctionSettings, ...] | None, BeforeValidator(as_tuple)]] = Field(
        default=None, min_length=1
    )
    """Reward functions: `exact_match`, `last_number`, `math_verify`, `reasoning_gym`, `code_tests`, `judge`,
    `path/to/file.py:function` or `package.module:function`, or tables with `function`, `weight` and `timeout_s`. The
    score is the weighted sum. Default: the function that belongs to the prompts (`reasoning-gym`), else
    `exact_match`."""
    workers: Common[PositiveInt] = 1
    """Number of processes that call reward functions. `code_tests` and `judge` have workers of their own."""
    timeout_s: Common[Seconds] = 10.0
    """Seconds that one reward function may take for one response. After that its process is killed, and the outcome is
    `timeout`."""
    memory_mb: PositiveInt | None = 2048
    """Megabytes that a reward process may use in addition to what its functions used when loaded; null: no limit."""
    on_failure: Common[Literal["zero", "drop"]] = "zero"
    """What to do with a response whose reward failed: `zero` gives it score 0, `drop` removes it from its group."""
    timing: RewardTiming = "streamed"
    """When to score: `streamed`, each response as soon as it ends; `barrier`, after all responses of the step ended."""
    code_tests: CodeTestsSettings = CodeTestsSettings()
    judge: JudgeSettings = JudgeSettings()
