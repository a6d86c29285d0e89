"""Sampling follows the distribution it reports, and cuts what it is asked to cut."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tailrace.core.ids import GroupId, ResponseId
from tailrace.engines.contract import Sampling
from tailrace.engines.native.randomness import stream_key, uniforms
from tailrace.engines.native.sampler import SamplingBatch, SamplingColumns, sample

CPU = torch.device("cpu")
PROBABILITIES = torch.tensor([0.05, 0.4, 0.02, 0.25, 0.08, 0.2])
LOGITS = PROBABILITIES.log() + 3.0


def settings_of(*rows: Sampling) -> SamplingBatch:
    columns = SamplingColumns(len(rows))
    for slot, row in enumerate(rows):
        columns.set(slot, row)
    return columns.gather(np.arange(len(rows)), len(rows), CPU)


def support(**cut: float) -> list[int]:
    """The tokens that can still be drawn."""
    num_draws = 4000
    draws = torch.arange(num_draws) / num_draws
    batch = settings_of(*[Sampling(**cut)] * num_draws)
    tokens, _, _ = sample(LOGITS.expand(num_draws, -1), draws, batch)
    return sorted(set(tokens.tolist()))


def draw(num_draws: int, **cut: float) -> tuple[np.ndarray, np.ndarray]:
    """Tokens drawn with the engine's own random numbers, and their log-probs."""
    key = stream_key(11, ResponseId(GroupId("train", 0, 0), 0))
    numbers = torch.from_numpy(uniforms(np.full(num_draws, key), np.arange(num_draws)))
    batch = settings_of(*[Sampling(**cut)] * num_draws)
    tokens, logprobs, _ = sample(LOGITS.expand(num_draws, -1), numbers, batch)
    return tokens.numpy(), logprobs.numpy()


@pytest.mark.parametrize(
    "cut", [{}, {"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.2}]
)
def test_frequencies_match_the_reported_logprobs(cut: dict[str, float]) -> None:
    num_draws = 20000
    tokens, logprobs = draw(num_draws, **cut)
    counts = np.bincount(tokens, minlength=6)
    reported = np.zeros(6)
    reported[tokens] = np.exp(logprobs)
    assert reported.sum() == pytest.approx(1.0, abs=1e-5)
    drawn = counts > 0
    expected = num_draws * reported[drawn]
    statistic = ((counts[drawn] - expected) ** 2 / expected).sum()
    assert statistic < 22  # five degrees of freedom: exceeded once in two thousand seeds


def test_each_cut_keeps_what_it_says() -> None:
    assert support() == [0, 1, 2, 3, 4, 5]
    assert support(top_k=2) == [1, 3]
    assert support(top_k=100) == [0, 1, 2, 3, 4, 5]
    assert support(top_p=0.39) == [1]
    assert support(top_p=0.41) == [1, 3]
    assert support(top_p=0.8) == [1, 3, 5]
    assert support(min_p=0.45) == [1, 3, 5]
    assert support(min_p=0.9) == [1]
    assert support(top_k=2, top_p=0.6) == [1]  # 0.4 / 0.65 of what top-k left
    assert support(temperature=0.0, top_k=3) == [1]


def test_rows_of_one_batch_keep_their_own_settings() -> None:
    rows = [Sampling(), Sampling(temperature=0.0), Sampling(top_k=1), Sampling(temperature=2.0, min_p=0.5)]
    draws = torch.full((4,), 0.97)
    together = sample(LOGITS.expand(4, -1), draws, settings_of(*rows))
    for index, row in enumerate(rows):
        tokens, logprobs, full = sample(LOGITS[None], draws[:1], settings_of(row))
        assert tokens[0] == together[0][index]
        assert logprobs[0] == together[1][index]
        assert (logprobs if full is None else full)[0] == together[2][index]


def test_the_largest_and_smallest_numbers_draw_possible_tokens() -> None:
    impossible_ends = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]])
    batch = settings_of(Sampling())
    for number, token in ((0.0, 1), (1 - 2**-24, 2)):
        tokens, _, _ = sample(impossible_ends, torch.tensor([number]), batch)
        assert tokens.tolist() == [token]


def test_random_numbers_depend_on_seed_response_and_position_only() -> None:
    names = [ResponseId(GroupId("train", 0, prompt), member) for prompt in range(20) for member in range(8)]
    keys = np.array([stream_key(seed, name) for seed in (0, 1) for name in names])
    assert len(set(keys.tolist())) == len(keys)
    table = np.stack([uniforms(keys, np.full(len(keys), position)) for position in range(50)])
    assert len(np.unique(table)) > 0.99 * table.size
    assert uniforms(keys[7:8], np.array([31]))[0] == table[31, 7]
    assert abs(table.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(table[:-1].ravel(), table[1:].ravel())[0, 1]) < 0.03
    assert (table >= 0).all()
    assert (table < 1).all()


def test_the_key_of_a_response_never_changes() -> None:
    """A run that is resumed with a later release must sample what it would have sampled."""
    assert int(stream_key(0, ResponseId(GroupId("train", 0, 0), 0))) == 12691912633625337788
