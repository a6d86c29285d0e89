"""Fits the costs of scores to what journals tell of them."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median, pstdev

from tailrace.core.outcomes import Part
from tailrace.sim.fitting.machine_facts import MachineFacts
from tailrace.sim.fitting.overlap import mean
from tailrace.sim.observations import Observations, PartSeen
from tailrace.sim.reward_model import FittedPart, RewardCosts, RewardKind


def fit_rewards(seen: Observations, machine: MachineFacts) -> RewardCosts:
    costs = RewardCosts(seed=0, num_workers=machine.num_reward_workers)
    parts = seen.rewards or {Part.FUNCTION: PartSeen(Part.FUNCTION)}
    if list(parts) == [Part.FUNCTION]:
        return replace(costs, kinds=(_fit_kind(parts[Part.FUNCTION]),))
    fitted = (
        FittedPart(
            part=part,
            num_workers=machine.workers[part],
            kind=_fit_kind(parts[part]),
            abstain_share=mean([float(abstained) for abstained in parts[part].abstained.values()]),
        )
        for part in Part
        if part in parts
    )
    return replace(costs, fitted=tuple(fitted))


def _fit_kind(seen: PartSeen) -> RewardKind:
    seconds = [max(value, 1e-6) for value in seen.seconds] or [1e-6]
    total = len(seen.seconds) + seen.num_timeouts
    return RewardKind(
        median_s=median(seconds),
        spread=pstdev([math.log(value) for value in seconds]),
        timeout_share=seen.num_timeouts / total if total else 0.0,
        timeout_s=max(seconds) * 1.01,
    )
