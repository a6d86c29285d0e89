"""Fit the cost model to journals of real runs, and say how far off it is.

Engine: ``seconds = sum(steps * (k1 * kv + k3 * max(n*, n) + k4)) + prefill_s * prefilled`` over samples of some steps
each. It is linear for a given turning point ``n* = k2 / k3``, so every turning point that occurs is tried and the best
kept. Costs are never negative: a column that would be is left out. Trainer: a fixed part and a part per token. The rest
are means.

The error is that of whole optimizer steps: the run is simulated with the fitted costs and the recorded lengths, and
each step's seconds are compared with the real ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from typing import Any

import numpy as np

from tailrace.core.events import RunStarted
from tailrace.core.journal import Entry
from tailrace.core.schedule import Schedule
from tailrace.observe.metrics import Metrics
from tailrace.sim.engine_model import EngineCosts
from tailrace.sim.instance import InstanceTimes
from tailrace.sim.lengths import RecordedLengths
from tailrace.sim.observations import EngineSample, Observations
from tailrace.sim.result import run_schedule
from tailrace.sim.reward_model import RewardCosts, RewardKind
from tailrace.sim.trainer_model import TrainerCosts
from tailrace.sim.world import WorldCosts

_PROMPT_LENGTH = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a journal does not tell about the machine it was written on."""

    prompt_length: int
    """Mean tokens of a prompt."""
    max_response_length: int
    kv_capacity: int
    max_running: int
    num_prompts: int
    num_reward_workers: int
    report_s: float = 0.0

    @classmethod
    def of(cls, config: Mapping[str, Any], *, num_prompts: int) -> Machine:
        """As the settings of a run have it; ``ValueError`` if they are not there."""
        try:
            rollout, data, reward = config["rollout"], config["data"], config["reward"]
            longest = data["max_prompt_length"] + rollout["max_response_length"]
            return cls(
                # Not in the journal, and little beside the responses.
                prompt_length=min(_PROMPT_LENGTH, data["max_prompt_length"]),
                max_response_length=rollout["max_response_length"],
                kv_capacity=rollout["kv_tokens"] or rollout["max_running"] * longest // 2,
                max_running=rollout["max_running"],
                num_prompts=num_prompts,
                num_reward_workers=reward["workers"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"the run's config.json does not say what the simulator needs: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    costs: WorldCosts
    engine_error: float
    """Mean absolute percentage error over samples of engine steps."""
    num_samples: int
    num_steps: int


def calibrate(journals: Iterable[Iterable[Entry]], machine: Machine) -> Calibration:
    """Fit to one or more journals written on the same machine."""
    seen = Observations(prompt_length=machine.prompt_length, max_running=machine.max_running)
    for journal in journals:
        for entry in journal:
            seen.feed(entry)
    engine = seen.engine
    if len(engine) < 5 or not seen.training:
        raise ValueError(f"{len(engine)} samples of engine steps and {len(seen.training)} optimizer steps are too few")
    fitted = _fit_engine(engine, machine)
    predicted = [_predict(fitted, sample) for sample in engine]
    return Calibration(
        costs=WorldCosts(
            engine=fitted,
            instance=InstanceTimes(
                pull_s=_mean(seen.pull_s), release_s=_mean(seen.release_s), report_s=machine.report_s
            ),
            trainer=_fit_trainer(seen),
            reward=_fit_rewards(seen, machine),
            num_prompts=machine.num_prompts,
            prompt_length=machine.prompt_length,
            max_response_length=machine.max_response_length,
        ),
        engine_error=error(predicted, [sample.seconds for sample in engine]),
        num_samples=len(engine),
        num_steps=len(seen.training),
    )


def step_seconds(entries: Iterable[Entry]) -> list[float]:
    """Seconds of each optimizer step of a run."""
    metrics = Metrics()
    rows = [row for entry in entries for row in metrics.feed(entry)]
    return [row["timing_s/step"] for row in rows if "timing_s/step" in row]


def predict(entries: Sequence[Entry], calibration: Calibration, schedule: Schedule | None = None) -> list[float]:
    """Seconds of each step of this run, or of another schedule on its lengths, as the simulator sees it."""
    first = entries[0].event
    assert isinstance(first, RunStarted), "a journal begins with RunStarted"
    return step_seconds(simulate(entries, calibration, schedule or first.schedule)[0])


def simulate(entries: Sequence[Entry], calibration: Calibration, schedule: Schedule) -> tuple[list[Entry], int]:
    """The journal of this schedule on the lengths of that run, and how many lengths it had to draw."""
    seen = Observations(prompt_length=0)
    for entry in entries:
        seen.feed(entry)
    simulated: list[Entry] = []
    lengths = RecordedLengths(seen.lengths, seed=0)
    run_schedule(schedule, calibration.costs, lengths, order=seen.offered, record=simulated.append)
    return simulated, len(lengths.drawn)


def error(predicted: Sequence[float], real: Sequence[float]) -> float:
    """Mean absolute percentage error, as a share."""
    return fmean(abs(p - r) / r for p, r in zip(predicted, real, strict=True) if r > 0)


def _fit_engine(samples: Sequence[EngineSample], machine: Machine) -> EngineCosts:
    seconds = np.array([sample.seconds for sample in samples])
    turning_points = sorted({n for sample in samples for _, _, n in sample.parts})
    best: tuple[float, int, np.ndarray] | None = None
    for turn in [0, *turning_points]:
        columns = [
            [sum(s * kv for s, kv, _ in x.parts), sum(s * max(turn, n) for s, _, n in x.parts), x.steps, x.prefilled]
            for x in samples
        ]
        solution = _non_negative(np.array(columns, dtype=float), seconds)
        residual = float(np.sum((np.array(columns) @ solution - seconds) ** 2))
        if best is None or residual < best[0] * (1 - 1e-9):
            best = (residual, turn, solution)
    assert best is not None
    _, turn, (k1, k3, k4, prefill_s) = best
    return EngineCosts(
        k1=float(k1),
        k2=float(k3 * turn),
        k3=float(k3),
        k4=float(k4),
        prefill_s=float(prefill_s),
        kv_capacity=machine.kv_capacity,
        max_running=machine.max_running,
    )


def _predict(costs: EngineCosts, sample: EngineSample) -> float:
    steps = sum(s * (costs.k1 * kv + max(costs.k2, costs.k3 * n) + costs.k4) for s, kv, n in sample.parts)
    return steps + costs.prefill_s * sample.prefilled


def _fit_trainer(seen: Observations) -> TrainerCosts:
    tokens = np.array([[1.0, count] for count, _ in seen.training])
    fixed_s, token_s = _non_negative(tokens, np.array([seconds for _, seconds in seen.training]))
    publish_s, checkpoint_s = _mean(seen.publish_s), _mean(seen.save_s)
    return TrainerCosts(fixed_s=float(fixed_s), token_s=float(token_s), publish_s=publish_s, checkpoint_s=checkpoint_s)


def _fit_rewards(seen: Observations, machine: Machine) -> RewardCosts:
    seconds = [max(value, 1e-6) for value in seen.reward_s] or [1e-6]
    total = len(seen.reward_s) + seen.num_timeouts
    kind = RewardKind(
        median_s=median(seconds),
        spread=pstdev([math.log(value) for value in seconds]),
        timeout_share=seen.num_timeouts / total if total else 0.0,
        timeout_s=max(seconds) * 1.01,
    )
    return RewardCosts(seed=0, num_workers=machine.num_reward_workers, kinds=(kind,))


def _non_negative(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Least squares without negative coefficients: the most negative column is left out until there is none."""
    used = list(range(columns.shape[1]))
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-12)
    while used:
        found = np.linalg.lstsq(columns[:, used] / scale[used], target, rcond=None)[0] / scale[used]
        if (found >= 0).all():
            solution = np.zeros(columns.shape[1])
            solution[used] = found
            return solution
        used.pop(int(np.argmin(found * scale[used])))
    return np.zeros(columns.shape[1])


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
