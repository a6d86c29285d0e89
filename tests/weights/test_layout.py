from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.weights.sharding.layout import ALIGNMENT, ITEM_BYTES, WeightLayout

SHAPES = st.lists(st.integers(0, 9), max_size=3).map(tuple)
TENSORS = st.lists(
    st.tuples(st.text(min_size=1), SHAPES, st.sampled_from(sorted(ITEM_BYTES))), unique_by=lambda t: t[0]
)


def test_a_layout_of_three_tensors_by_hand() -> None:
    layout = WeightLayout.build([("a", (2, 3), "float32"), ("b", (), "bfloat16"), ("c", (40,), "bfloat16")])
    assert [(entry.name, entry.offset, entry.num_bytes) for entry in layout.entries] == [
        ("a", 0, 24),
        ("b", 64, 2),
        ("c", 128, 80),
    ]
    assert layout.num_bytes == 256


@settings(max_examples=50, deadline=None)
@given(TENSORS)
def test_tensors_are_aligned_and_never_overlap_and_the_table_goes_through_json(tensors: list) -> None:
    layout = WeightLayout.build(tensors)
    end = 0
    for entry in layout.entries:
        assert entry.offset % ALIGNMENT == 0
        assert entry.offset >= end
        end = entry.offset + entry.num_bytes
    assert end <= layout.num_bytes
    assert WeightLayout.from_json(layout.to_json()) == layout


def test_an_unknown_dtype_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="complex64"):
        WeightLayout.build([("a", (1,), "complex64")])


def test_a_name_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        WeightLayout.build([("a", (1,), "float32"), ("a", (2,), "float32")])
