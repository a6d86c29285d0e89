from __future__ import annotations

import pytest
import torch

from tailrace.algorithms.aggregation import LossAggMode, denominator, loss_sum

LOSS = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [100.0, 200.0, 300.0]])
MASK = torch.tensor([[True, True, True], [True, False, True], [False, False, False]])


@pytest.mark.parametrize(
    ("mode", "expected_sum", "expected_denominator"),
    [("token-mean", 46.0, 5), ("seq-mean-token-mean", 22.0, 2), ("seq-mean-token-sum", 46.0, 2)],
)
def test_the_three_modes_by_hand(mode: LossAggMode, expected_sum: float, expected_denominator: int) -> None:
    assert loss_sum(LOSS, MASK, mode).item() == expected_sum
    assert denominator(MASK, mode).item() == expected_denominator


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_both_halves_add_up_over_micro_batches_however_the_batch_is_cut(mode: LossAggMode) -> None:
    generator = torch.Generator().manual_seed(0)
    loss = torch.rand(7, 5, generator=generator, dtype=torch.float64)
    mask = torch.rand(7, 5, generator=generator) < 0.6
    for cut in ([7], [1, 6], [3, 2, 2]):
        pieces = list(zip(loss.split(cut), mask.split(cut), strict=True))
        total = sum(loss_sum(*piece, mode).item() for piece in pieces)
        count = sum(denominator(piece[1], mode).item() for piece in pieces)
        assert total == pytest.approx(loss_sum(loss, mask, mode).item(), rel=1e-12)
        assert count == denominator(mask, mode).item()


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_a_masked_nan_reaches_neither_the_sum_nor_the_gradient(mode: LossAggMode) -> None:
    loss = torch.where(MASK, LOSS, float("nan")).requires_grad_()
    total = loss_sum(loss, MASK, mode)
    total.backward()
    assert total.isfinite()
    assert loss.grad.isfinite().all()
    assert (loss.grad[~MASK] == 0).all()


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="median"):
        loss_sum(LOSS, MASK, "median")
    with pytest.raises(ValueError, match="median"):
        denominator(MASK, "median")
