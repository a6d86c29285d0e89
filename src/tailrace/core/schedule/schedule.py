"""The schedule: the settings of a run that the core reads. The journal's first event holds it.

A schedule says how many more groups than a batch are launched, what happens to unfinished groups when the batch is
full, how stale a sample may be, and whether rollout and training overlap. A preset is a named choice of these settings
(`config.presets`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tailrace.core.ledger.admission import NO_BOUND_BEFORE, AdmissionRule, LedgerRules
from tailrace.core.outcomes import Part
from tailrace.core.schedule.case_time import CaseTime
from tailrace.core.schedule.choices import EpochEnd, Leftovers, OnStuck, Placement, Stream, VersionCap
from tailrace.core.schedule.coordination import Coordination
from tailrace.core.schedule.lending import Lending
from tailrace.core.schedule.parallelism import Parallelism

EDITION = 2
"""Number of the rules that new runs follow. It grows when the core answers the same events in another way."""

MAX_GROWTH = 4
"""Largest factor by which dynamic sampling may increase the number of prompts that a round launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSet:
    """A set of prompts on which versions are evaluated."""

    name: str
    num_prompts: int
    group_size: int
    """Responses per prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Time limits of waits in seconds, and the limit on restarts.

    An instance or a trainer that exceeds a limit is restarted. When anything else does, the run fails.
    """

    start_s: float = 600.0
    """Start of an instance or of the trainer."""
    progress_s: float = 300.0
    """Next report of an instance that has work."""
    stall_s: float | None = None
    """Next token, or more prefill, of an instance that has work and reports; None: no limit."""
    reward_s: float = 60.0
    """Next score of reward functions while some are awaited."""
    tests_s: float | None = None
    """The same for scores by test cases; None: as ``reward_s``."""
    judge_s: float | None = None
    """The same for scores by a judge; None: as ``reward_s``."""
    prompts_s: float = 60.0
    """Prompts that were requested from a source."""
    train_s: float = 3600.0
    """One optimizer step."""
    weights_s: float = 600.0
    """Publishing or pulling weights, and releasing an instance's memory."""
    checkpoint_s: float = 1800.0
    """Writing a checkpoint."""
    max_restarts: int = 3
    """Restarts of one worker between two optimizer steps."""
    stop_s: float = 25.0
    """The step in progress and a checkpoint, after the run was asked to stop."""

    def part_s(self, part: Part) -> float:
        """Next score of this part."""
        own = {Part.TESTS: self.tests_s, Part.JUDGE: self.judge_s}.get(part)
        return self.reward_s if own is None else own

    @property
    def shortest_s(self) -> float:
        """The smallest of the time limits of waits that may begin with any event."""
        return min(
            self.start_s,
            self.progress_s,
            *(limit for limit in (self.stall_s, self.tests_s, self.judge_s) if limit is not None),
            self.reward_s,
            self.prompts_s,
            self.train_s,
            self.weights_s,
            self.checkpoint_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All settings of a run that the core reads. ``soundness.py`` says which combinations cannot work."""

    edition: int = EDITION
    """Number of the rules that the run follows. A journal that does not name it was written with the first. A run that
    is continued repeats its past with the rules it was made with, and then goes on with the newest."""
    train_source: str
    """Name of the source of training prompts."""
    batch_size: int
    """Groups per optimizer step."""
    group_size: int
    """Responses per group that are trained."""
    max_steps: int
    """Optimizer steps of the whole run; 0: the run only evaluates."""
    launch_prompts: int = 0
    """Groups that a short round launches; 0: ``batch_size``."""
    launch_responses: int = 0
    """Responses with which a group of a short round begins; 0: ``group_size``. Long rounds use ``group_size``."""
    trials: tuple[tuple[int, int], ...] = ()
    """Pairs (groups, responses per group) that the first short rounds try out. Later rounds use the fastest pair
    (`core/collection/speculation.py`)."""
    leftovers: Leftovers = Leftovers.WAIT
    """What happens to groups that are unfinished when the batch is full."""
    max_staleness: int | None = 0
    """Largest staleness of a trained response: the version that is trained minus the version of the response's oldest
    token. None: no limit."""
    admission: AdmissionRule = AdmissionRule.DEADLINE
    """How the ledger enforces ``max_staleness``; without effect where that is None."""
    rounds_ahead: int = 0
    """How many rounds may begin before the batch of an earlier round is trained."""
    placement: Placement = Placement.SHARED
    """Which devices rollout and training use."""
    stream: Stream = Stream.NEVER
    """Whether complete groups are trained while their round is still running. The optimizer step is taken when the
    round has ended."""
    stream_groups: int = 1
    """Fewest groups that are trained at once while their round is still running."""
    lending: Lending = Lending()
    """Whether instances are lent to training for the rest of a round, and which."""
    parallelism: Parallelism = Parallelism()
    """Parallel sizes that instances may have, and how the size of a round is chosen."""
    keep_deferred_tokens: bool = False
    """True: a deferred prompt continues its responses if ``max_staleness`` allows. False: it always starts again."""
    epoch_end: EpochEnd = EpochEnd.CARRY
    """What happens to the long queue at the end of a pass over the data."""
    epoch_size: int = 0
    """Prompts in one pass over the training source; 0: unknown."""
    max_versions_per_sample: int | None = None
    """Most versions whose tokens one response may contain; None: no limit."""
    version_cap: VersionCap = VersionCap.FINISH
    """What happens to a response that reaches ``max_versions_per_sample``."""
    max_restarts_per_sample: int = 2
    """How often a response may restart because of ``max_versions_per_sample``. After that its round waits for it."""
    max_stuck_s: float | None = None
    """How many seconds an idle trainer waits for the unfinished groups of a full batch; None: no limit. Only for `keep`
    with a strict bound, where such a wait could otherwise last for ever."""
    on_stuck: OnStuck = OnStuck.RESTART
    """What happens to those groups after ``max_stuck_s``."""
    has_quotas: bool = False
    """Whether a short round trains the groups of each domain in the proportion in which it launched them."""

    num_instances: int = 1
    """Rollout instances at the start of the run."""
    max_in_flight: int = 256
    """Most responses that an instance has at the same time, running or queued inside it."""
    eval_sets: tuple[EvalSet, ...] = ()
    """Sets on which versions are evaluated."""
    eval_interval: int | None = None
    """Optimizer steps between two evaluations; None: no evaluation."""
    save_interval: int | None = None
    """Optimizer steps between two checkpoints; None: only after the last step, and when time decides."""
    save_share: float = 0.0
    """Largest share of the time of the run that checkpoints may take, where time decides when one is due; 0: it does
    not."""
    is_reward_streamed: bool = True
    """True: request the score of a response as soon as it ends. False: wait until no training response is running."""
    drops_failed_rewards: bool = False
    """True: a response whose reward failed is removed from its group. False: it gets the score 0."""
    score_parts: tuple[Part, ...] = (Part.FUNCTION,)
    """Parts that scores of this run have. A part that does not apply to a response has the outcome ABSTAINED."""
    case_time: CaseTime = CaseTime()
    """How long test cases of programs may run."""
    filters_equal_scores: bool = False
    """Dynamic sampling: replace a training group whose scores are all equal, because its advantages would be 0."""
    max_useless_groups: int = 1000
    """The run fails after this many groups in a row that were filtered or dropped."""
    coordination: Coordination = Coordination()
    """How rollout work is distributed over instances."""
    limits: Limits = Limits()
    """Time limits of waits, and the limit on restarts."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "group_size", "num_instances", "max_in_flight", "stream_groups"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_steps < 0:
            raise ValueError(f"max_steps must be at least 0, got {self.max_steps}")

    @staticmethod
    def upgraded(stored: dict[str, object]) -> dict[str, object]:
        """Return the stored fields of a schedule with the names and values of this release."""
        found = dict(stored)
        if "keeps_deferred_tokens" in found:
            found["keep_deferred_tokens"] = found.pop("keeps_deferred_tokens")
        if found.get("admission") == NO_BOUND_BEFORE:  # ``max_staleness`` says so too
            found["admission"] = AdmissionRule.DEADLINE.value
        return found

    def continued(self, other: Schedule) -> Schedule:
        """Return this schedule with the values of ``other`` that may change when a run is continued."""
        return replace(
            self,
            edition=other.edition,
            max_steps=other.max_steps,
            eval_sets=other.eval_sets,
            eval_interval=other.eval_interval,
            save_interval=other.save_interval,
            save_share=other.save_share,
            score_parts=other.score_parts,
            case_time=replace(other.case_time, strategy=self.case_time.strategy),
            lending=replace(other.lending, strategy=self.lending.strategy),
            parallelism=self.parallelism.placed_as(other.parallelism),
            limits=other.limits,
        )

    @property
    def num_launched(self) -> int:
        """Groups that a short round launches, without trials and dynamic sampling."""
        return self.launch_prompts or self.batch_size

    @property
    def most_launched(self) -> int:
        """Largest number of groups that a short round launches, trials included and dynamic sampling not."""
        return max([self.num_launched, *(groups for groups, _ in self.trials)])

    @property
    def largest_round(self) -> int:
        """Largest number of groups that any round launches."""
        if not self.launches_for_filter:
            return self.most_launched
        most = MAX_GROWTH * self.most_launched
        return (
            most if not self.epoch_size else max(self.most_launched, min(most, self.epoch_size - self.num_unfinished))
        )

    @property
    def launches_for_filter(self) -> bool:
        """Whether short rounds launch additional prompts to make up for groups that dynamic sampling will filter."""
        return self.filters_equal_scores and self.aborts_leftovers

    @property
    def num_unfinished(self) -> int:
        """Largest number of unfinished prompts outside the current round: in the long queue and in batches that are not
        trained yet."""
        return max(2, self.rounds_ahead + 1) * self.batch_size

    @property
    def defers(self) -> bool:
        """Whether unfinished groups join the long queue."""
        return self.leftovers is Leftovers.DEFER

    @property
    def num_members(self) -> int:
        """Responses with which a group of a short round begins."""
        return self.launch_responses or self.group_size

    @property
    def has_rounds(self) -> bool:
        """Whether each batch is collected from a round. False only with `keep`."""
        return self.leftovers is not Leftovers.KEEP

    @property
    def aborts_leftovers(self) -> bool:
        """Whether unfinished groups are aborted when the batch is full. Then a round may launch more than it trains."""
        return self.leftovers in (Leftovers.DROP, Leftovers.DEFER)

    @property
    def overlaps(self) -> bool:
        """Whether rollout continues during an optimizer step."""
        return self.rounds_ahead > 0 or (not self.has_rounds and self.max_staleness != 0)

    @property
    def streams(self) -> bool:
        """Whether groups may be trained while their round is still running."""
        return self.stream is not Stream.NEVER

    @property
    def ledger(self) -> LedgerRules:
        """Rules of the ledger under this schedule."""
        # With `wait` and `resume` no group is dropped for lack of a place, so no buffer may hold more than a batch.
        may_drop = self.leftovers in (Leftovers.DROP, Leftovers.DEFER, Leftovers.KEEP)
        return LedgerRules(
            batch_size=self.batch_size,
            max_staleness=self.max_staleness,
            admission=self.admission,
            capacity=self.largest_round if may_drop else self.batch_size,
        )

    @property
    def is_strict(self) -> bool:
        """Whether no group is ever trained above ``max_staleness``."""
        return self.max_staleness is not None and self.admission.is_strict

    @property
    def trains(self) -> bool:
        """Whether the run takes optimizer steps. If not, it generates and scores the evaluation sets once and ends."""
        return self.max_steps > 0

    def is_eval_due(self, version: int) -> bool:
        """Whether this version is evaluated."""
        return bool(self.eval_sets and self.eval_interval) and self._is_due(version, self.eval_interval)

    def is_save_due(self, version: int) -> bool:
        """Whether a checkpoint of this version is written."""
        return version > 0 and self._is_due(version, self.save_interval)

    def _is_due(self, version: int, interval: int | None) -> bool:
        return version == self.max_steps or (interval is not None and version % interval == 0)
