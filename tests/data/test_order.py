from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.data.order import SourceOrder


def order(size: int, *, seed: int = 0, source: str = "train", shuffle: bool = True) -> SourceOrder:
    return SourceOrder([index * 10 for index in range(size)], source=source, seed=seed, shuffle=shuffle)


@given(st.integers(1, 12), st.integers(0, 3), st.lists(st.integers(0, 30), max_size=8), st.booleans())
def test_each_epoch_visits_every_prompt_once_however_it_is_asked_for(
    size: int, seed: int, counts: list[int], shuffle: bool
) -> None:
    asked, once = order(size, seed=seed, shuffle=shuffle), order(size, seed=seed, shuffle=shuffle)
    epoch, offset, visited = 0, 0, []
    for count in counts:
        offer = asked.ids(epoch, offset, count)
        assert len(offer.prompts) == count
        visited += offer.prompts
        epoch, offset = offer.next_epoch, offer.next_offset
    assert tuple(visited) == once.ids(0, 0, sum(counts)).prompts
    assert (epoch, offset) == divmod(sum(counts), size)
    for complete in range(epoch):
        indices = [index for number, index in visited if number == complete]
        assert sorted(indices) == [index * 10 for index in range(size)]


def test_an_offer_that_crosses_into_the_next_epoch_says_so() -> None:
    offer = order(3, shuffle=False).ids(4, 2, 3)
    assert offer.prompts == ((4, 20), (5, 0), (5, 10))
    assert (offer.next_epoch, offer.next_offset) == (5, 2)


def test_the_order_depends_on_seed_source_and_epoch_and_on_nothing_else() -> None:
    first = order(50).permutation(0)
    assert order(50).permutation(0) == first
    others = [order(50, seed=1).permutation(0), order(50, source="eval").permutation(0), order(50).permutation(1)]
    assert len({first, *others}) == 4
    again = order(50)
    again.permutation(1)
    assert again.permutation(0) == first


def test_without_shuffling_the_order_is_that_of_the_file() -> None:
    assert order(4, shuffle=False).permutation(7) == (0, 10, 20, 30)


def test_a_cursor_outside_the_source_is_refused() -> None:
    with pytest.raises(ValueError, match="offset 3"):
        order(3).ids(0, 3, 1)
    with pytest.raises(ValueError, match="no prompts"):
        order(0)
