from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tailrace.core.length_classes import attended, length_classes

CAPACITIES = length_classes(300)


def test_capacities_double_up_to_the_longest() -> None:
    assert CAPACITIES == (64, 128, 256, 300)
    assert length_classes(64) == (64,)
    assert length_classes(20) == (20,)


def test_rows_are_padded_to_the_longest_of_their_class() -> None:
    found = attended([10, 64, 65, 100, 290], CAPACITIES)
    assert (found.num_tokens, found.num_classes) == (2 * 64 + 2 * 100 + 290, 3)
    assert found.num_steps == 1, "after the next step, 64 tokens have become 65"
    assert attended([290], CAPACITIES).num_steps == math.inf, "there is no class above"


@given(st.lists(st.integers(1, 300), min_size=1, max_size=12))
def test_until_a_class_changes_every_step_adds_a_token_per_row(lengths: list[int]) -> None:
    first = attended(lengths, CAPACITIES)
    steps = int(min(first.num_steps - 1, 300 - max(lengths)))
    later = attended([length + steps for length in lengths], CAPACITIES)
    assert later.num_tokens == first.num_tokens + steps * len(lengths)
    assert later.num_classes == first.num_classes
    assert first.num_tokens >= sum(lengths)
