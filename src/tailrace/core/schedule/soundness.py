"""Which combinations of settings cannot work, and why."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.core.ledger.admission import AdmissionRule
from tailrace.core.schedule.choices import EpochEnd, Leftovers, Placement
from tailrace.core.schedule.lending import Lending
from tailrace.core.schedule.parallelism import Parallelism
from tailrace.core.schedule.schedule import Schedule


def sound(schedule: Schedule) -> Schedule:
    """Return the schedule; ``ValueError`` with the first reason if it cannot work."""
    for sentence in unsound(schedule):
        raise ValueError(sentence)
    return schedule


def unsound(schedule: Schedule) -> Iterator[str]:
    """Return the reasons why this combination of settings cannot work, one sentence each."""
    s, bound = schedule, schedule.max_staleness
    if s.num_launched < s.batch_size:
        yield f"a round of {s.num_launched} prompts never fills a batch of {s.batch_size}"
    if s.num_members < s.group_size:
        yield f"{s.num_members} responses never fill a group of {s.group_size}"
    yield from _unsound_leftovers(s, bound)
    yield from _unsound_bound(s, bound)
    if s.overlaps and s.placement is Placement.COLOCATED:
        yield "colocated rollout and training take turns, so they cannot overlap; use 'shared' or 'disaggregated'"
    yield from _unsound_stream(s)
    yield from _unsound_sizes(s)
    is_speculative = s.num_launched > s.batch_size or s.num_members > s.group_size
    if not s.is_reward_streamed and (is_speculative or not s.has_rounds):
        yield "a response counts when its reward is back: only 'wait' without over-provisioning can hold rewards back"


def _unsound_sizes(s: Schedule) -> Iterator[str]:
    known = s.parallelism
    changes = known.strategy != Parallelism().strategy
    if changes and len(known.layouts) < 2:
        yield "the parallel size can change only if there are several: give at least two parallel sizes"
    if changes and not s.has_rounds:
        yield "the parallel size changes when a round opens, and 'keep' has no rounds: leave it fixed"
    first = known.layout(known.initial)
    if first is not None and (first.first, first.count) != (0, s.num_instances):
        yield f"the first {s.num_instances} instances start, but the layout of size {known.initial} has others"


def _unsound_stream(s: Schedule) -> Iterator[str]:
    lends = s.lending.strategy != Lending().strategy
    if lends and not s.streams:
        yield "instances are lent so that training can stream: set stream to 'always' or 'once'"
    if lends and s.rounds_ahead:
        yield "lent instances come back with the next version, so the next round cannot begin before it"
    if not s.streams:
        return
    if not s.has_rounds:
        yield "'keep' has no rounds and trains beside rollout anyway, so there is nothing to stream: leave stream out"
    if s.placement is Placement.COLOCATED and not lends:
        yield (
            "colocated training waits until instances have left its devices, so it streams only if they are lent: set"
            " lending, or use 'shared' or 'disaggregated'"
        )
    if not s.is_reward_streamed:
        yield "groups are complete only when their rewards are back: a streamed step needs streamed rewards"


def _unsound_leftovers(s: Schedule, bound: int | None) -> Iterator[str]:
    if s.leftovers is Leftovers.WAIT and s.num_launched > s.batch_size:
        yield "over-provisioned prompts are left over when the batch is full, and 'wait' has no leftovers: use another"
    if s.keep_deferred_tokens and (s.leftovers is not Leftovers.DEFER or bound == 0):
        yield "kept tokens of deferred prompts are stale when trained: they need 'defer' and max_staleness above 0"
    if s.epoch_end is EpochEnd.FLUSH:
        if s.leftovers is not Leftovers.DEFER:
            yield "only 'defer' has a queue to flush at the end of an epoch"
        if s.filters_equal_scores:
            yield "a flushed round trains what is left, so groups cannot be filtered and replaced: carry the queue on"
        if s.epoch_size < s.most_launched:
            yield f"a round launches {s.most_launched} prompts, more than the {s.epoch_size} of an epoch"
    elif s.defers and 0 < s.epoch_size < (needed := s.num_unfinished + s.most_launched):
        yield (
            f"a deferred prompt is trained before it comes again, so the {s.epoch_size} prompts may all be waiting:"
            f" 'defer' needs at least {needed}"
        )
    if s.trials and s.leftovers is not Leftovers.DEFER:
        yield "over-provisioning is searched for by short and long rounds, which only 'defer' has"
    if any(groups <= s.batch_size or responses < s.group_size for groups, responses in s.trials):
        yield f"a trial launches more than {s.batch_size} prompts, with at least {s.group_size} responses each"
    if s.has_quotas and not s.aborts_leftovers:
        yield "quotas leave complete groups over, so they need 'defer' or 'drop'"
    if s.max_versions_per_sample is not None and s.leftovers is not Leftovers.RESUME:
        yield "max_versions_per_sample is for responses that are interrupted and resumed: it needs 'resume'"
    if not s.has_rounds and s.rounds_ahead:
        yield "'keep' has no rounds, so none can be ahead; max_staleness bounds it"


def _unsound_bound(s: Schedule, bound: int | None) -> Iterator[str]:
    if bound is not None and s.admission is AdmissionRule.COUNT and s.has_rounds:
        yield "a cap on the number in flight replaces the bound only where there are no rounds: it needs 'keep'"
    if bound is not None and s.admission is AdmissionRule.ORDER and (s.has_rounds or s.num_launched > s.batch_size):
        yield "in the order they began all groups are trained, so none may be left over: it needs 'keep' and no surplus"
    if s.max_stuck_s is not None and (s.has_rounds or not s.is_strict or s.max_stuck_s <= 0):
        yield f"max_stuck_s {s.max_stuck_s}: only 'keep' under a strict bound can be stuck, for more than 0 seconds"
    if bound is None and not s.has_rounds:
        yield "'keep' without a bound would launch prompts without end; set max_staleness"
    if bound is not None and s.rounds_ahead > bound:
        yield f"a round {s.rounds_ahead} ahead of training is trained that many versions late; the bound is {bound}"
    if bound is not None and s.leftovers is Leftovers.RESUME and s.num_launched > (bound + 1) * s.batch_size:
        yield (
            f"{s.num_launched} prompts in flight cannot all be trained within max_staleness {bound}:"
            f" at most {(bound + 1) * s.batch_size}"
        )
