"""Sums over the micro-batches of one step, and the metrics they become.

Sums stay on the device until ``metrics``, so that accumulating never waits for an accelerator.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tailrace.core.ids import GroupId, ResponseId
from tailrace.trainer.batch import Sample
from tailrace.trainer.model import routers
from tailrace.trainer.model.collate import MicroBatch
from tailrace.trainer.ranks.ranks import Ranks
from tailrace.trainer.step import critic
from tailrace.trainer.step.objective import Objective


class Totals:
    """Everything one step has accumulated so far."""

    def __init__(self) -> None:
        self.groups: set[GroupId] = set()
        self._sums: dict[str, Tensor] = {}
        self._largest: dict[str, Tensor] = {}
        self._finite: list[tuple[Sequence[Sample], Tensor]] = []
        self.broken: list[ResponseId] = []
        """Responses whose log-probs are not finite, on any rank. Only merged totals have them."""

    def add_groups(self, groups: list[list[Sample]]) -> None:
        """Add groups to the step: all of them or, if one of them was added before, none."""
        names = [group[0].response_id.group for group in groups]
        for name in names:
            if name in self.groups:
                raise ValueError(f"group {name} came twice in one step; a group comes whole")
        self.groups.update(names)

    def add(self, micro: MicroBatch, objective: Objective, logprobs_BT: Tensor) -> None:
        self.add_sums(objective.sums)
        for name, value in objective.largest.items():
            self._largest[name] = torch.maximum(self._largest[name], value) if name in self._largest else value
        self._finite.append((micro.samples, micro.is_finite(logprobs_BT)))

    def add_sums(self, sums: dict[str, Tensor]) -> None:
        for name, value in sums.items():
            value = value.to(torch.float64)
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def merged(self, ranks: Ranks) -> Totals:
        """What all ranks have accumulated together."""
        if ranks.size == 1:
            return self
        parts = ranks.gather(self._in_numbers(), by_samples=True)
        whole = Totals()
        for part in parts:
            groups, sums, largest, broken = part
            whole.groups |= {GroupId.parse(name) for name in groups}
            whole.add_sums({name: torch.tensor(value, dtype=torch.float64) for name, value in sums.items()})
            for name, value in largest.items():
                whole._largest[name] = torch.tensor(max(value, float(whole._largest.get(name, value))))
            whole.broken += [ResponseId.parse(name) for name in broken]
        return whole

    def _in_numbers(self) -> tuple[list[str], dict[str, float], dict[str, float], list[str]]:
        """What `merged` needs, as plain values."""
        largest = {name: float(value) for name, value in self._largest.items()}
        broken = [str(sample.response_id) for sample in self.not_finite()]
        return [str(name) for name in self.groups], self._numbers(), largest, broken

    def denominator(self) -> float:
        return self._sum("denominator")

    def not_finite(self) -> list[Sample]:
        """Responses to which the model gave log-probs that are not finite, in order of id."""
        pairs = [pair for samples, flags in self._finite for pair in zip(samples, flags.tolist(), strict=True)]
        return sorted((sample for sample, finite in pairs if not finite), key=lambda sample: sample.response_id)

    def metrics(self) -> dict[str, float]:
        tokens, denominator = max(1.0, self._sum("tokens")), max(1.0, self._sum("denominator"))
        found = {
            "actor/pg_loss": self._sum("pg_loss") / denominator,
            "actor/pg_clipfrac": self._sum("clipped") / tokens,
            "actor/ppo_kl": self._sum("ppo_kl") / tokens,
            "actor/entropy": self._sum("entropy") / tokens,
        }
        if "kl_loss" in self._sums:
            found["actor/kl_loss"] = self._sum("kl_loss") / denominator
        if "vf_loss" in self._sums:
            found |= critic.metrics(self._numbers(), tokens=tokens, denominator=denominator)
        found |= self._importance_metrics(tokens) | self._overlong_metrics() | self._mismatch_metrics()
        return found | routers.metrics(self._numbers())

    def _importance_metrics(self, tokens: float) -> dict[str, float]:
        if not self._sum("tokens"):
            return {}
        responses = self._sum("responses")
        return {
            "importance/ratio_mean": self._sum("ratio") / tokens,
            "importance/ratio_max": float(self._largest["ratio"]),
            "importance/seq_ratio_mean": self._sum("seq_ratio") / responses,
            "importance/seq_ratio_max": float(self._largest["seq_ratio"]),
            "importance/geo_ratio_mean": self._sum("geo_ratio") / responses,
            "importance/geo_ratio_max": float(self._largest["geo_ratio"]),
            "importance/weight_mean": self._sum("importance_weight") / tokens,
            "importance/frac_clipped": self._sum("importance_clipped") / tokens,
            "importance/frac_masked": self._sum("importance_masked") / tokens,
        }

    def _overlong_metrics(self) -> dict[str, float]:
        found: dict[str, float] = {}
        if "overlong_penalty" in self._sums:
            found["overlong/penalty_mean"] = self._sum("overlong_penalty") / self._sum("overlong_responses")
        if "overlong_filtered" in self._sums:
            found["overlong/frac_filtered"] = self._sum("overlong_filtered") / self._sum("overlong_responses")
        return found

    def _mismatch_metrics(self) -> dict[str, float]:
        tokens = self._sum("mismatch_tokens")
        if not tokens:
            return {}
        return {
            "mismatch/logprob_abs_diff": self._sum("logprob_diff") / tokens,
            "mismatch/logprob_abs_diff_max": float(self._largest["logprob_diff"]),
            "mismatch/kl": self._sum("mismatch_kl") / tokens,
        }

    def _numbers(self) -> dict[str, float]:
        return {name: float(value) for name, value in self._sums.items()}

    def _sum(self, name: str) -> float:
        return float(self._sums[name]) if name in self._sums else 0.0
