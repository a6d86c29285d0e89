from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.data.mixture import MixedOrder, Share, quotas

SHARES = st.lists(st.tuples(st.integers(1, 9), st.floats(0.01, 100.0)), min_size=1, max_size=4)


def mixture(sizes_and_weights: list[tuple[int, float | None]], *, seed: int = 0, shuffle: bool = True) -> MixedOrder:
    shares = {
        f"source{number}": Share(indices=tuple(range(100 * number, 100 * number + size)), weight=weight)
        for number, (size, weight) in enumerate(sizes_and_weights)
    }
    return MixedOrder(shares, seed=seed, shuffle=shuffle)


@given(SHARES, st.lists(st.integers(0, 30), max_size=6), st.booleans())
def test_the_order_is_the_same_however_it_is_asked_for_and_nothing_comes_twice(
    shares: list[tuple[int, float]], counts: list[int], shuffle: bool
) -> None:
    epoch, offset, visited = 0, 0, []
    for count in counts:
        # A new object each time: nothing may be remembered between two offers.
        offer = mixture(shares, shuffle=shuffle).ids(epoch, offset, count)
        visited += offer.prompts
        epoch, offset = offer.next_epoch, offer.next_offset
    assert tuple(visited) == mixture(shares, shuffle=shuffle).ids(0, 0, sum(counts)).prompts
    assert (epoch, offset) == divmod(sum(counts), sum(size for size, _ in shares))
    assert len(set(visited)) == len(visited)


@given(SHARES)
def test_a_source_visits_all_its_prompts_before_it_begins_again(shares: list[tuple[int, float]]) -> None:
    visited = mixture(shares).ids(0, 0, 200).prompts
    for number, (size, _) in enumerate(shares):
        mine = [(epoch, index) for epoch, index in visited if index // 100 == number]
        for start in range(0, len(mine) - size + 1, size):
            assert {index for _, index in mine[start : start + size]} == set(range(100 * number, 100 * number + size))
            assert {epoch for epoch, _ in mine[start : start + size]} == {start // size}


@given(st.lists(st.floats(0.001, 1000.0), min_size=1, max_size=6), st.integers(0, 200))
def test_quotas_add_up_and_follow_the_weights(weights: list[float], more: int) -> None:
    total = len(weights) + more
    counts = quotas(weights, total)
    assert sum(counts) == total
    assert min(counts) >= 1
    exact = [total * weight / sum(weights) for weight in weights]
    if min(exact) >= 1:
        assert all(abs(count - value) < 1.0 + 1e-6 for count, value in zip(counts, exact, strict=True))


def test_every_stretch_holds_the_sources_by_their_weights() -> None:
    order = mixture([(50, 3.0), (50, 1.0)])
    for start in range(0, 96, 4):
        assert sum(index < 100 for _, index in order.ids(0, start, 4).prompts) == 3


def test_without_weights_an_epoch_visits_every_prompt_once() -> None:
    visited = mixture([(7, None), (3, None)]).ids(0, 0, 10).prompts
    assert sorted(visited) == [(0, index) for index in [*range(7), 100, 101, 102]]


def test_a_cursor_outside_the_mixture_is_refused() -> None:
    with pytest.raises(ValueError, match="offset 3"):
        mixture([(1, 1.0), (2, 1.0)]).ids(0, 3, 1)
