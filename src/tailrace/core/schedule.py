"""What a run is asked to do, in numbers the core understands. Part of the journal's first event.

A schedule is: how much more than a batch is launched, what becomes of what is left over when the batch is full, how
stale a sample may be, and whether rollout and training overlap. Presets are points in that space (`config.presets`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from tailrace.core.admission import Admission, LedgerRules
from tailrace.core.coordination import Coordination


class Leftovers(Enum):
    """What becomes of launched groups that are not complete when the batch is."""

    WAIT = "wait"
    """There are none: the round ends when everything launched is complete."""
    DROP = "drop"
    """Aborted; the prompt is given up."""
    DEFER = "defer"
    """Aborted; the prompt joins the long queue and comes again in a long round."""
    RESUME = "resume"
    """Interrupted; they continue, before anything new, in the next round."""
    KEEP = "keep"
    """They go on: there are no rounds, and training takes each batch as it fills."""


class Placement(Enum):
    COLOCATED = "colocated"
    """Rollout gives its memory back while training runs."""
    SHARED = "shared"
    """Both stay resident on the same devices."""
    DISAGGREGATED = "disaggregated"
    """Each has devices of its own."""


class EpochEnd(Enum):
    """What becomes of a long queue that is shorter than a batch when a pass over the data ends."""

    CARRY = "carry"
    FLUSH = "flush"


class VersionCap(Enum):
    """What is done with a response that has tokens of ``max_versions_per_sample`` versions."""

    FINISH = "finish"
    """The round does not end before it."""
    RESTART = "restart"
    """It begins again from its prompt."""


class OnStuck(Enum):
    """What is done with the groups that training has waited for too long."""

    RESTART = "restart"
    """They begin again from their prompts."""
    DROP = "drop"
    """Their prompts are given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSet:
    name: str
    num_prompts: int
    group_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Seconds a wait may last, by what is waited for."""

    start_s: float = 600.0
    progress_s: float = 300.0
    reward_s: float = 60.0
    prompts_s: float = 60.0
    train_s: float = 3600.0
    weights_s: float = 600.0
    checkpoint_s: float = 1800.0
    max_restarts: int = 3

    @property
    def shortest_s(self) -> float:
        return min(
            self.start_s,
            self.progress_s,
            self.reward_s,
            self.prompts_s,
            self.train_s,
            self.weights_s,
            self.checkpoint_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    train_source: str
    batch_size: int
    """Groups per optimizer step."""
    group_size: int
    """Responses per group that are trained."""
    max_steps: int
    launch_prompts: int = 0
    """Groups a round launches; 0: the batch."""
    launch_responses: int = 0
    """Responses a launched group begins with; 0: the group size. Long rounds never launch more than they train."""
    trials: tuple[tuple[int, int], ...] = ()
    """(groups, responses per group) that short rounds launch by way of trial; the best is kept (`core.speculation`)."""
    leftovers: Leftovers = Leftovers.WAIT
    max_staleness: int | None = 0
    """Versions between the oldest token of a trained response and the version that trains it; None: any number."""
    admission: Admission = Admission.DEADLINE
    rounds_ahead: int = 0
    """Rounds that may begin before the batches of earlier rounds are trained."""
    placement: Placement = Placement.SHARED
    keeps_deferred_tokens: bool = False
    """A deferred prompt resumes its responses where the bound allows, rather than beginning again."""
    epoch_end: EpochEnd = EpochEnd.CARRY
    epoch_size: int = 0
    """Prompts in one pass over the training source; 0: not known."""
    max_versions_per_sample: int | None = None
    version_cap: VersionCap = VersionCap.FINISH
    max_stuck_s: float | None = None
    """How long the trainer may wait for the unfinished groups of a strict batch; None: until they end."""
    on_stuck: OnStuck = OnStuck.RESTART
    has_quotas: bool = False
    """Short rounds take groups of each domain in the proportion they were launched in."""

    num_instances: int = 1
    max_in_flight: int = 256
    """Responses an instance is given at the same time."""
    eval_sets: tuple[EvalSet, ...] = ()
    eval_interval: int | None = None
    save_interval: int | None = None
    is_reward_streamed: bool = True
    """Score a response when it ends, rather than when all of the step have ended."""
    drops_failed_rewards: bool = False
    """A response whose reward failed leaves its group, rather than scoring 0."""
    filters_equal_scores: bool = False
    """Dynamic sampling: a training group whose scores are all equal teaches nothing; another one takes its place."""
    max_useless_groups: int = 1000
    """Groups in a row that may be filtered or dropped before the run gives up."""
    coordination: Coordination = Coordination()
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        for name in ("batch_size", "group_size", "num_instances", "max_in_flight"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_steps < 0:
            raise ValueError(f"max_steps must be at least 0, got {self.max_steps}")
        for sentence in unsound(self):
            raise ValueError(sentence)

    @property
    def num_launched(self) -> int:
        """Groups a short round launches."""
        return self.launch_prompts or self.batch_size

    @property
    def most_launched(self) -> int:
        """Groups the largest short round launches."""
        return max([self.num_launched, *(groups for groups, _ in self.trials)])

    @property
    def num_members(self) -> int:
        """Responses a group of a short round begins with."""
        return self.launch_responses or self.group_size

    @property
    def has_rounds(self) -> bool:
        return self.leftovers is not Leftovers.KEEP

    @property
    def discards_leftovers(self) -> bool:
        """Whether unfinished groups are given up when the batch is full, so that more may begin than can be trained."""
        return self.leftovers in (Leftovers.DROP, Leftovers.DEFER)

    @property
    def overlaps(self) -> bool:
        """Whether responses are generated while an optimizer step is taken."""
        return self.rounds_ahead > 0 or (not self.has_rounds and self.max_staleness != 0)

    @property
    def ledger(self) -> LedgerRules:
        # What is launched beyond a batch may be given up only where leftovers are: elsewhere each must have its place.
        gives_up = self.leftovers in (Leftovers.DROP, Leftovers.DEFER, Leftovers.KEEP)
        return LedgerRules(
            batch_size=self.batch_size,
            max_staleness=self.max_staleness or 0,
            admission=self.admission,
            capacity=self.most_launched if gives_up else self.batch_size,
        )

    @property
    def is_strict(self) -> bool:
        return self.admission.is_strict

    @property
    def trains(self) -> bool:
        """Without steps nothing trains: the evaluation sets are generated and scored once, and the run is over."""
        return self.max_steps > 0

    def is_eval_due(self, version: int) -> bool:
        return bool(self.eval_sets and self.eval_interval) and self._is_due(version, self.eval_interval)

    def is_save_due(self, version: int) -> bool:
        return version > 0 and self._is_due(version, self.save_interval)

    def _is_due(self, version: int, interval: int | None) -> bool:
        return version == self.max_steps or (interval is not None and version % interval == 0)


def unsound(schedule: Schedule) -> Iterator[str]:
    """Why this combination cannot work, one sentence each."""
    s, bound = schedule, schedule.max_staleness
    if s.num_launched < s.batch_size:
        yield f"a round of {s.num_launched} prompts never fills a batch of {s.batch_size}"
    if s.num_members < s.group_size:
        yield f"{s.num_members} responses never fill a group of {s.group_size}"
    yield from _unsound_leftovers(s, bound)
    yield from _unsound_bound(s, bound)
    if s.overlaps and s.placement is Placement.COLOCATED:
        yield "colocated rollout and training take turns, so they cannot overlap; use placement 'shared'"
    is_speculative = s.num_launched > s.batch_size or s.num_members > s.group_size
    if not s.is_reward_streamed and (is_speculative or not s.has_rounds):
        yield "a response counts when its reward is back: only 'wait' without over-provisioning can hold rewards back"


def _unsound_leftovers(s: Schedule, bound: int | None) -> Iterator[str]:
    if s.leftovers is Leftovers.WAIT and s.num_launched > s.batch_size:
        yield "over-provisioned prompts are left over when the batch is full, and 'wait' has no leftovers: use another"
    if s.keeps_deferred_tokens and (s.leftovers is not Leftovers.DEFER or bound == 0):
        yield "kept tokens of deferred prompts are stale when trained: they need 'defer' and max_staleness above 0"
    if s.epoch_end is EpochEnd.FLUSH:
        if s.leftovers is not Leftovers.DEFER:
            yield "only 'defer' has a queue to flush at the end of an epoch"
        if s.filters_equal_scores:
            yield "a flushed round trains what is left, so groups cannot be filtered and replaced: carry the queue on"
        if s.epoch_size < s.most_launched:
            yield f"a round launches {s.most_launched} prompts, more than the {s.epoch_size} of an epoch"
    elif s.leftovers is Leftovers.DEFER and 0 < s.epoch_size < 2 * s.batch_size + s.most_launched:
        yield (
            f"a deferred prompt is trained before it comes again, so the {s.epoch_size} prompts may all be waiting:"
            f" 'defer' needs at least {2 * s.batch_size + s.most_launched}"
        )
    if s.trials and s.leftovers is not Leftovers.DEFER:
        yield "over-provisioning is searched for by short and long rounds, which only 'defer' has"
    if any(groups <= s.batch_size or responses < s.group_size for groups, responses in s.trials):
        yield f"a trial launches more than {s.batch_size} prompts, with at least {s.group_size} responses each"
    if s.has_quotas and not s.discards_leftovers:
        yield "quotas leave complete groups over, so they need 'defer' or 'drop'"
    if s.max_versions_per_sample is not None and s.leftovers is not Leftovers.RESUME:
        yield "max_versions_per_sample is for responses that are interrupted and resumed: it needs 'resume'"
    if not s.has_rounds and s.rounds_ahead:
        yield "'keep' has no rounds, so none can be ahead; max_staleness bounds it"


def _unsound_bound(s: Schedule, bound: int | None) -> Iterator[str]:
    if (bound is None) != (s.admission is Admission.UNBOUNDED):
        yield f"admission '{s.admission.value}' and max_staleness {bound} contradict each other"
    if s.admission is Admission.COUNT and s.has_rounds:
        yield "a cap on the number in flight replaces the bound only where there are no rounds: it needs 'keep'"
    if s.admission is Admission.ORDER and (s.has_rounds or s.num_launched > s.batch_size):
        yield "in the order they began all groups are trained, so none may be left over: it needs 'keep' and no surplus"
    if s.max_stuck_s is not None and (s.has_rounds or not s.is_strict or s.max_stuck_s <= 0):
        yield f"max_stuck_s {s.max_stuck_s}: only 'keep' under a strict bound can be stuck, for more than 0 seconds"
    if bound is None and not s.has_rounds:
        yield "'keep' without a bound would launch prompts without end; set max_staleness"
    if s.coordination.plans and (s.has_rounds or not s.is_strict):
        yield (
            "throughput-oriented strategies move work between instances of different versions: they need 'keep' and"
            " a strict bound"
        )
    if bound is not None and s.rounds_ahead > bound:
        yield f"a round {s.rounds_ahead} ahead of training is trained that many versions late; the bound is {bound}"
    if bound is not None and s.leftovers is Leftovers.RESUME and s.num_launched > (bound + 1) * s.batch_size:
        yield (
            f"{s.num_launched} prompts in flight cannot all be trained within max_staleness {bound}:"
            f" at most {(bound + 1) * s.batch_size}"
        )
