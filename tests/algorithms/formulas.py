"""The published formulas in plain Python and double precision: what every variant is held against.

Written from the papers, one response and one token at a time, without tensors and without a line of
``tailrace.algorithms``. A response is a list over its tokens; ``None`` stands where a token is masked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev, variance

Tokens = Sequence[float | None]
"""A value per token."""


def kept(tokens: Tokens) -> list[float]:
    return [value for value in tokens if value is not None]


def siblings(scores: Sequence[float], groups: Sequence[int], place: int) -> list[float]:
    """All scores of the group, its own included."""
    return [score for score, group in zip(scores, groups, strict=True) if group == groups[place]]


# Advantages: one per response.


def grpo(scores: Sequence[float], groups: Sequence[int], *, epsilon: float) -> list[float]:
    """(r_i - mean(r)) / std(r) within the group; std over n - 1."""
    return [
        (score - fmean(group)) / (stdev(group) + epsilon)
        for place, score in enumerate(scores)
        if (group := siblings(scores, groups, place))
    ]


def dr_grpo(scores: Sequence[float], groups: Sequence[int]) -> list[float]:
    """r_i - mean(r) within the group."""
    return [score - fmean(siblings(scores, groups, place)) for place, score in enumerate(scores)]


def rloo(scores: Sequence[float], groups: Sequence[int]) -> list[float]:
    """r_i minus the mean of the other responses to the prompt."""
    found = []
    for place, score in enumerate(scores):
        others = siblings(scores, groups, place)
        others.remove(score)
        found.append(score - fmean(others))
    return found


def whitened(values: Sequence[float], num_tokens: Sequence[int], *, epsilon: float) -> list[float]:
    """(v - mean) / sqrt(var + epsilon) over every token of the batch, each holding its response's value."""
    spread = [value for value, count in zip(values, num_tokens, strict=True) for _ in range(count)]
    return [(value - fmean(spread)) / math.sqrt(variance(spread) + epsilon) for value in values]


def gae(score: float, values: Tokens, *, gamma: float, lam: float) -> list[float]:
    """sum over l of (gamma lam)^l delta_(t+l), delta_t = r_t + gamma V_(t+1) - V_t; the score is paid at the end."""
    states = kept(values)
    last = len(states) - 1
    deltas = [
        (score if t == last else 0.0) + gamma * (0.0 if t == last else states[t + 1]) - states[t]
        for t in range(len(states))
    ]
    return [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, len(deltas))) for t in range(len(deltas))]


# Losses: one per token, from log-probs new and old and an advantage.


def limited(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)


def surrogate(ratio: float, advantage: float, *, low: float, high: float) -> float:
    """-min(r A, clip(r, 1 - low, 1 + high) A)."""
    return -min(ratio * advantage, limited(ratio, 1 - low, 1 + high) * advantage)


def ppo(new: float, old: float, advantage: float, *, low: float, high: float, dual: float | None = None) -> float:
    """The clipped surrogate; with a dual clip, for A < 0 the objective is at least c A."""
    loss = surrogate(math.exp(new - old), advantage, low=low, high=high)
    return min(loss, -dual * advantage) if dual is not None and advantage < 0 else loss


def gspo(new: Tokens, old: Tokens, advantage: float, *, low: float, high: float) -> float:
    """The clipped surrogate of s = (pi_new(y) / pi_old(y)) ^ (1 / |y|), the same at every token."""
    ratio = (math.exp(sum(kept(new))) / math.exp(sum(kept(old)))) ** (1 / len(kept(new)))
    return surrogate(ratio, advantage, low=low, high=high)


def cispo(new: float, old: float, advantage: float, *, low: float, high: float) -> float:
    """-clip(r) A log pi_new."""
    return -limited(math.exp(new - old), 1 - low, 1 + high) * advantage * new


def sapo(new: float, old: float, advantage: float, *, positive: float, negative: float) -> float:
    """-4 / tau sigmoid(tau (r - 1)) A, tau by the sign of A."""
    tau = positive if advantage > 0 else negative
    return -4 / tau / (1 + math.exp(-tau * (math.exp(new - old) - 1))) * advantage


def k3(new: float, reference: float) -> float:
    """r - 1 - log r with r = pi_ref / pi_new."""
    ratio = math.exp(reference) / math.exp(new)
    return ratio - 1 - math.log(ratio)


def value_loss(value: float, target: float) -> float:
    """(V - R)^2 / 2."""
    return (value - target) ** 2 / 2


# Corrections: the weights of a response's tokens, from r = pi_old / pi_behaviour at each.


def token_truncated(ratios: Sequence[float], low: float, high: float) -> list[float]:
    return [limited(ratio, low, high) for ratio in ratios]


def sequence_truncated(ratios: Sequence[float], low: float, high: float) -> list[float]:
    return [limited(math.prod(ratios), low, high)] * len(ratios)


def token_masked(ratios: Sequence[float], low: float, high: float) -> list[float]:
    return [ratio if low <= ratio <= high else 0.0 for ratio in ratios]


def sequence_masked(ratios: Sequence[float], low: float, high: float) -> list[float]:
    """1 or 0 for the whole response, by the geometric mean of its ratios."""
    return [float(low <= math.prod(ratios) ** (1 / len(ratios)) <= high)] * len(ratios)


# Aggregation of token losses.


def token_mean(losses: Sequence[Tokens]) -> float:
    return fmean(loss for response in losses for loss in kept(response))


def seq_mean_token_mean(losses: Sequence[Tokens]) -> float:
    return fmean(fmean(kept(response)) for response in losses)


def seq_mean_token_sum(losses: Sequence[Tokens]) -> float:
    return fmean(sum(kept(response)) for response in losses)


def overlong(length: int, *, longest: int, buffer: int) -> float:
    """0 up to longest - buffer, then down to -1 at longest."""
    return -limited((length - (longest - buffer)) / buffer, 0.0, 1.0)
