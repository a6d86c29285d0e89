"""What metrics remember of a run between two journal entries, beside what the shared fold remembers."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.core.ids import ResponseId
from tailrace.observe.metrics.natural_lengths import LengthSample
from tailrace.observe.shared_fold.records import ResponseRecord


@dataclass(slots=True, kw_only=True)
class Clock:
    """When things happened in the current step, by the training clock: run time without seconds of evaluation."""

    step_began: float = 0.0
    first_submit: float | None = None
    last_finish: float = 0.0
    last_score: float = 0.0
    """When a training response was last scored before the step was asked for."""
    publish_s: float = 0.0
    pull_s: float = 0.0
    save_s: float = 0.0
    eval_s: float = 0.0
    """Seconds in which only evaluation responses ran."""
    instance_s: float = 0.0
    """Instance-seconds of generating, without seconds of evaluation."""
    num_tokens: int = 0
    """Tokens of training responses."""
    num_eval_tokens: int = 0
    """Tokens of evaluation responses."""


@dataclass(slots=True, kw_only=True)
class Memory:
    clock: Clock = field(default_factory=Clock)
    dropped: dict[ResponseId, ResponseRecord] = field(default_factory=dict)
    """Scored responses of groups that were filtered or dropped since the step before."""
    num_dropped: int = 0
    """Number of groups filtered or dropped since the step before, scored or not."""
    lengths: list[LengthSample] = field(default_factory=lambda: [LengthSample()])
    """One sample per step, the current one last; as many as an estimate covers."""
    num_instances_lost: int = 0
    tokens_total: int = 0
    """Tokens of all responses, those of evaluations included."""
    eval_s: float = 0.0
    """Seconds of the run in which only evaluation responses ran."""

    def elapse(self, seconds: float, *, num_generating: int, is_evaluating: bool) -> None:
        """Count seconds in which this many instances generated."""
        if is_evaluating:
            self.eval_s += seconds
            self.clock.eval_s += seconds
        else:
            self.clock.instance_s += seconds * num_generating
