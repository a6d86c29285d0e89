"""Fits the costs of a trainer: of the pieces of its steps, and of the finish that comes after them.

A step that is not streamed is one piece. A piece has a fixed cost and a cost per token. The fixed cost counts only if
the samples show it clearly: pieces of one size say little about it, and a streamed step would have it several times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tailrace.observe.costs.fitting import fit_linear
from tailrace.sim.fitting.machine_facts import MachineFacts
from tailrace.sim.fitting.overlap import FittedApart, alone_sample, fit_apart, mean, those_alone, warm
from tailrace.sim.observations import Observations, TrainingSample
from tailrace.sim.trainer_model import TrainerCosts

_CLEARLY = 2.0
"""Standard errors by which a fixed cost must differ from none."""


@dataclass(frozen=True, slots=True)
class PieceCosts:
    fixed_s: float
    token_s: float
    """Seconds per token that all replicas compute together."""

    def seconds(self, sample: TrainingSample) -> float:
        return self.fixed_s + self.token_s * sample.tokens


def fit_trainer(seen: Observations, machine: MachineFacts) -> tuple[TrainerCosts, FittedApart[PieceCosts]]:
    """Return the costs, and how those of the pieces were found."""
    num_replicas = machine.num_replicas
    pieces = fit_apart(warm(seen.pieces), _fit_pieces, PieceCosts.seconds, unseen=machine.sharing.training)
    finishes = warm(seen.finishes)
    finish_s = mean([alone_sample(x, pieces.slowdown).seconds for x in those_alone(finishes) or finishes])
    costs = TrainerCosts(
        fixed_s=finish_s,
        piece_s=pieces.costs.fixed_s,
        token_s=pieces.costs.token_s * num_replicas,
        num_replicas=num_replicas,
        publish_s=mean(seen.publish_s),
        checkpoint_s=mean(seen.save_s),
        start_s=mean(seen.trainer_start_s),
        warm_up_s=_warm_up(seen, pieces, finish_s),
    )
    return costs, pieces


def _fit_pieces(samples: Sequence[TrainingSample]) -> PieceCosts:
    rows, seconds = np.array([[1.0, x.tokens] for x in samples]), np.array([x.seconds for x in samples])
    if len(samples) > 2 and np.linalg.matrix_rank(rows) == 2:
        found = np.linalg.lstsq(rows, seconds, rcond=None)[0]
        spread = float(np.sum((rows @ found - seconds) ** 2)) / (len(samples) - 2)
        doubt = float(np.sqrt(spread * np.linalg.inv(rows.T @ rows)[0, 0]))
        if found[0] > _CLEARLY * doubt and found[1] >= 0.0:
            return PieceCosts(float(found[0]), float(found[1]))
    [token_s] = fit_linear([[x.tokens] for x in samples], [x.seconds for x in samples])
    return PieceCosts(0.0, token_s)


def _warm_up(seen: Observations, pieces: FittedApart[PieceCosts], finish_s: float) -> float:
    """Return the additional seconds of the first step after a start."""
    first = [x.seconds - pieces.costs.seconds(x) for x in _alone_first(seen.pieces, pieces.slowdown)]
    first += [x.seconds - finish_s for x in _alone_first(seen.finishes, pieces.slowdown)]
    return max(0.0, sum(first) / max(seen.num_trainer_starts, 1))


def _alone_first(samples: Sequence[TrainingSample], slowdown: float) -> list[TrainingSample]:
    return [alone_sample(sample, slowdown) for sample in samples if sample.is_first]
