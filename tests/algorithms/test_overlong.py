from __future__ import annotations

import pytest
import torch

from tailrace.algorithms.overlong import soft_penalty


def test_the_penalty_falls_along_a_line_inside_the_buffer() -> None:
    lengths = torch.tensor([1, 80, 81, 90, 100, 130])
    found = soft_penalty(lengths, max_length=100, buffer_length=20)
    assert found.tolist() == pytest.approx([0.0, 0.0, -0.05, -0.5, -1.0, -1.0])


@pytest.mark.parametrize("buffer_length", [0, 101])
def test_a_buffer_that_does_not_fit_is_refused(buffer_length: int) -> None:
    with pytest.raises(ValueError, match=f"got {buffer_length}"):
        soft_penalty(torch.tensor([1]), max_length=100, buffer_length=buffer_length)
