"""What metrics remember of a run between two journal entries, beside what the shared fold remembers."""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Part
from tailrace.observe.metrics.natural_lengths import LengthSample
from tailrace.observe.shared_fold.records import ResponseRecord


@dataclass(slots=True, kw_only=True)
class PartClock:
    """One part of the scores of training responses, in one step."""

    exposed_s: float = 0.0
    """Seconds in which this part was awaited, no response was generated and the trainer had nothing to do."""
    hidden_s: float = 0.0
    """Other seconds in which this part was awaited."""
    run_s: float = 0.0
    """How long the scores were computed, added up."""
    queued_s: float = 0.0
    """How long they waited before, added up."""
    queued_max_s: float = 0.0
    num_scored: int = 0
    num_failed: int = 0
    num_tokens: int = 0
    """Tokens that a judge read."""
    num_cut_cases: int = 0
    """Test cases that ran out of time."""


@dataclass(slots=True, kw_only=True)
class LimitCounts:
    """Limits of test cases that were sent in one step. The limit of a response is the longest of its cases."""

    num_sent: int = 0
    sum_s: float = 0.0
    min_s: float = 0.0
    max_s: float = 0.0
    num_probes: int = 0

    def add(self, limit_s: float) -> None:
        self.min_s = min(limit_s, self.min_s) if self.num_sent else limit_s
        self.max_s = max(limit_s, self.max_s)
        self.num_sent += 1
        self.sum_s += limit_s


@dataclass(slots=True, kw_only=True)
class CaseMemory:
    """What limits of test cases are counted with."""

    has_limits: bool = False
    """Whether a limit was ever sent with the request of a score."""
    solved: dict[str, None] = field(default_factory=dict)
    """Problems that a response has solved since then."""


@dataclass(slots=True, kw_only=True)
class Clock:
    """When things happened in the current step, by the training clock: run time without seconds of evaluation."""

    step_began: float = 0.0
    first_submit: float | None = None
    last_finish: float = 0.0
    reward_exposed_s: float = 0.0
    """Seconds in which scores were awaited, no response was generated and the trainer had nothing to do."""
    reward_hidden_s: float = 0.0
    """Other seconds in which scores were awaited."""
    update_hidden_s: float = 0.0
    """Seconds in which the trainer worked on a step while instances generated for training."""
    parts: dict[Part, PartClock] = field(default_factory=dict)
    limits: LimitCounts = field(default_factory=LimitCounts)
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

    def begin(self, now: float) -> None:
        """The step begins now: what was waited for until now is not part of it."""
        self.step_began = now
        self.reward_exposed_s = self.reward_hidden_s = self.update_hidden_s = 0.0
        for part in self.parts.values():
            part.exposed_s = part.hidden_s = 0.0


@dataclass(slots=True, kw_only=True)
class RoundCounts:
    """One round: what was counted from its opening until the next one opened, of training responses."""

    since: dict[ResponseId, float | None] = field(default_factory=dict)
    """When each of its unfinished responses was first sent or, once it has tokens of the round, last reported new ones.
    None: neither is known."""
    num_responses: int = 0
    """Responses that were sent to an instance."""
    num_first_tokens: int = 0
    first_token_s: float = 0.0
    """Seconds from the first sending to the first report with a token, added up."""
    first_token_max_s: float = 0.0
    num_tokens: int = 0
    """Tokens that were reported after other tokens of the same response, without a pause between them."""
    token_s: float = 0.0
    """Seconds between these reports, added up over responses."""
    held_s: float = 0.0
    """Seconds in which instances held training responses."""
    held_token_s: float = 0.0
    """Tokens that they held, times seconds."""
    held_max: int = 0
    num_preemptions: int = 0
    longest: int = 0
    parallel_size: int = 0
    """Devices of each instance; 0: the journal does not tell it."""


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
    cases: CaseMemory = field(default_factory=CaseMemory)
    long_rounds: dict[int, bool] = field(default_factory=dict)
    """Whether a round is long, by the version that its batch trains, until then. Empty where no round can be long."""
    rounds: dict[int, RoundCounts] = field(default_factory=dict)
    """Rounds whose batch is not trained yet, by the version that it trains."""
    round: int | None = None
    """The round that was opened last."""
    eval_s: float = 0.0
    """Seconds of the run in which only evaluation responses ran."""

    def elapse(self, seconds: float, *, num_generating: int, is_evaluating: bool) -> None:
        """Count seconds in which this many instances generated."""
        if is_evaluating:
            self.eval_s += seconds
            self.clock.eval_s += seconds
        else:
            self.clock.instance_s += seconds * num_generating
