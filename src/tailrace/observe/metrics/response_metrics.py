"""What a row of metrics says about responses: their scores, lengths, groups and staleness."""

from __future__ import annotations

from statistics import fmean, pstdev

from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.observe.shared_fold.records import ResponseRecord


def reward_metrics(responses: list[ResponseRecord]) -> dict[str, float]:
    scores = [each.score for each in responses]
    row: dict[str, float] = {
        "reward/mean": fmean(scores),
        "reward/std": pstdev(scores),
        "reward/max": max(scores),
        "reward/min": min(scores),
    }
    names = sorted({name for each in responses for name, _ in each.extras})
    for name in names:
        row[f"reward/{name}/mean"] = fmean(value for each in responses for key, value in each.extras if key == name)
    return row


def failure_metrics(responses: list[ResponseRecord]) -> dict[str, float]:
    """How many rewards failed, by kind of failure."""
    failures = [outcome for outcome in Outcome if outcome not in (Outcome.OK, Outcome.ABSTAINED)]
    counts = {f"reward/num_{kind.value}": sum(each.outcome is kind for each in responses) for kind in failures}
    return {**counts, "reward/num_without": sum(each.is_without_reward for each in responses)}


def length_metrics(responses: list[ResponseRecord]) -> dict[str, float]:
    ordered = sorted(each.length for each in responses)
    return {
        "response_length/mean": fmean(ordered),
        "response_length/min": ordered[0],
        "response_length/p50": percentile(ordered, 0.50),
        "response_length/p95": percentile(ordered, 0.95),
        "response_length/max": ordered[-1],
        "response_length/clip_ratio": fmean(each.is_clipped for each in responses),
    }


def group_metrics(trained: dict[ResponseId, ResponseRecord]) -> dict[str, float]:
    groups: dict[GroupId, list[float]] = {}
    for response_id, response in trained.items():
        groups.setdefault(response_id.group, []).append(response.score)
    equal = [scores[0] for scores in groups.values() if len(set(scores)) == 1]
    return {
        "groups/num": len(groups),
        "groups/num_samples": len(trained),
        "groups/frac_zero_std": len(equal) / len(groups),
        "groups/frac_all_good": sum(score > 0 for score in equal) / len(groups),
        "groups/frac_all_bad": sum(score <= 0 for score in equal) / len(groups),
    }


def staleness_metrics(ages: list[int], bound: int | None) -> dict[str, float]:
    """Ages of trained responses: versions between the one trained and the oldest one that generated a token."""
    return {
        "staleness/mean": fmean(ages),
        "staleness/max": max(ages),
        "staleness/violations": sum(bound is not None and age > bound for age in ages),
    }


def evaluation_metrics(name: str, groups: list[list[ResponseRecord]]) -> dict[str, float]:
    """Metrics of the evaluation set ``name``. Each group holds the responses to one prompt."""
    k = max(len(members) for members in groups)
    everyone = [each for members in groups for each in members]
    return {
        f"eval/{name}/avg@{k}": fmean(fmean(each.score for each in members) for members in groups),
        f"eval/{name}/pass@{k}": fmean(max(each.score for each in members) for members in groups),
        f"eval/{name}/response_length/mean": fmean(each.length for each in everyone),
        f"eval/{name}/response_length/max": max(each.length for each in everyone),
        f"eval/{name}/clip_ratio": fmean(each.is_clipped for each in everyone),
        f"eval/{name}/reward_failures": sum(each.outcome is not Outcome.OK for each in everyone),
        f"eval/{name}/without_reward": sum(each.is_without_reward for each in everyone),
    }


def percentile(ordered: list[int], share: float) -> int:
    """The nearest-rank percentile of sorted values."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
