"""Sums over the micro-batches of one step, and the metrics they become.

Sums stay on the device until ``metrics``, so that accumulating never waits for an accelerator.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tailrace.core.ids import GroupId, TrajectoryId
from tailrace.trainer.batch import Sample
from tailrace.trainer.microbatch import MicroBatch
from tailrace.trainer.objective import Objective


class Totals:
    """Everything one step has accumulated so far."""

    def __init__(self) -> None:
        self.groups: set[GroupId] = set()
        self._sums: dict[str, Tensor] = {}
        self._largest_diff: Tensor | None = None
        self._finite: list[tuple[list[TrajectoryId], Tensor]] = []

    def add_groups(self, groups: list[list[Sample]]) -> None:
        """Groups of this step; all of them or, when one was here before, none."""
        names = [group[0].trajectory.group for group in groups]
        for name in names:
            if name in self.groups:
                raise ValueError(f"group {name} came twice in one step; a group comes whole")
        self.groups.update(names)

    def add(self, micro: MicroBatch, objective: Objective, logprobs_BT: Tensor) -> None:
        for name, value in objective.sums.items():
            value = value.to(torch.float64)
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        largest = objective.largest_logprob_diff
        self._largest_diff = largest if self._largest_diff is None else torch.maximum(self._largest_diff, largest)
        is_finite_B = (logprobs_BT.detach().isfinite() | ~micro.mask_BT).all(dim=1)
        self._finite.append(([sample.trajectory for sample in micro.samples], is_finite_B))

    def denominator(self) -> float:
        return self._sum("denominator")

    def not_finite(self) -> list[TrajectoryId]:
        """Responses to which the model gave log-probs that are not finite."""
        names = [(ids, flags.tolist()) for ids, flags in self._finite]
        return sorted(name for ids, flags in names for name, finite in zip(ids, flags, strict=True) if not finite)

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
        if "importance_weight" in self._sums:
            found["importance/weight_mean"] = self._sum("importance_weight") / tokens
        return found | self._mismatch_metrics()

    def _mismatch_metrics(self) -> dict[str, float]:
        tokens = self._sum("mismatch_tokens")
        if not tokens or self._largest_diff is None:
            return {}
        return {
            "mismatch/logprob_abs_diff": self._sum("logprob_diff") / tokens,
            "mismatch/logprob_abs_diff_max": float(self._largest_diff),
            "mismatch/kl": self._sum("mismatch_kl") / tokens,
        }

    def _sum(self, name: str) -> float:
        return float(self._sums[name]) if name in self._sums else 0.0
