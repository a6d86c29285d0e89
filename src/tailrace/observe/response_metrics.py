"""What a row of metrics says about responses: their scores, lengths, groups and staleness."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, pstdev

from tailrace.core.ids import GroupId, TrajectoryId
from tailrace.core.outcomes import Outcome


@dataclass(slots=True, kw_only=True)
class Done:
    """A response that ended."""

    length: int
    is_clipped: bool
    oldest_version: int | None
    """The oldest version that produced any of its tokens; None: it has none."""
    outcome: Outcome | None = None
    score: float = 0.0
    reward_s: float = 0.0
    extras: tuple[tuple[str, float], ...] = ()

    def age(self, version: int) -> int:
        """Versions between its oldest token and ``version``; without tokens it is as fresh as can be."""
        return 0 if self.oldest_version is None else version - self.oldest_version


def reward_metrics(responses: list[Done]) -> dict[str, float]:
    scores = [done.score for done in responses]
    row: dict[str, float] = {
        "reward/mean": fmean(scores),
        "reward/std": pstdev(scores),
        "reward/max": max(scores),
        "reward/min": min(scores),
    }
    names = sorted({name for done in responses for name, _ in done.extras})
    for name in names:
        row[f"reward/{name}/mean"] = fmean(value for done in responses for key, value in done.extras if key == name)
    return row


def failure_metrics(responses: list[Done]) -> dict[str, float]:
    """How many rewards failed, by how."""
    failures = [outcome for outcome in Outcome if outcome is not Outcome.OK]
    return {f"reward/num_{kind.value}": sum(done.outcome is kind for done in responses) for kind in failures}


def length_metrics(responses: list[Done]) -> dict[str, float]:
    ordered = sorted(done.length for done in responses)
    return {
        "response_length/mean": fmean(ordered),
        "response_length/min": ordered[0],
        "response_length/p50": percentile(ordered, 0.50),
        "response_length/p95": percentile(ordered, 0.95),
        "response_length/max": ordered[-1],
        "response_length/clip_ratio": fmean(done.is_clipped for done in responses),
    }


def group_metrics(trained: dict[TrajectoryId, Done]) -> dict[str, float]:
    groups: dict[GroupId, list[float]] = {}
    for trajectory, done in trained.items():
        groups.setdefault(trajectory.group, []).append(done.score)
    equal = [scores[0] for scores in groups.values() if len(set(scores)) == 1]
    return {
        "groups/num": len(groups),
        "groups/num_samples": len(trained),
        "groups/frac_zero_std": len(equal) / len(groups),
        "groups/frac_all_good": sum(score > 0 for score in equal) / len(groups),
        "groups/frac_all_bad": sum(score <= 0 for score in equal) / len(groups),
    }


def staleness_metrics(ages: list[int], bound: int | None) -> dict[str, float]:
    """Versions between the one trained and the oldest one that wrote a token."""
    return {
        "staleness/mean": fmean(ages),
        "staleness/max": max(ages),
        "staleness/violations": sum(bound is not None and age > bound for age in ages),
    }


def evaluation_metrics(name: str, groups: list[list[Done]]) -> dict[str, float]:
    """Of the evaluation set ``name``; each group is the responses to one prompt."""
    k = max(len(members) for members in groups)
    everyone = [done for members in groups for done in members]
    return {
        f"eval/{name}/avg@{k}": fmean(fmean(done.score for done in members) for members in groups),
        f"eval/{name}/pass@{k}": fmean(max(done.score for done in members) for members in groups),
        f"eval/{name}/response_length/mean": fmean(done.length for done in everyone),
        f"eval/{name}/response_length/max": max(done.length for done in everyone),
        f"eval/{name}/clip_ratio": fmean(done.is_clipped for done in everyone),
        f"eval/{name}/reward_failures": sum(done.outcome is not Outcome.OK for done in everyone),
    }


def percentile(ordered: list[int], share: float) -> int:
    """The nearest-rank percentile of sorted values."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
