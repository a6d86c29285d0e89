"""The sizes of well-known models give the published numbers of parameters."""

from __future__ import annotations

import pytest

from tailrace.sizing.known_shapes import known_names, known_shape

PUBLISHED = {
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-32B": 32_763_876_352,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_known_model_has_as_many_parameters_as_published(name: str) -> None:
    shape = known_shape(name)
    assert shape is not None
    # Qwen2.5 has biases of queries, keys and values; Qwen3 has norms of queries and keys.
    small = 2 * shape.head_dim if shape.has_qk_norm else shape.query_size + 2 * shape.kv_size
    assert shape.num_parameters + shape.num_layers * small == PUBLISHED[name]


def test_every_known_name_is_compared() -> None:
    assert known_names() == list(PUBLISHED)


def test_variants_have_the_sizes_of_their_family_and_others_are_unknown() -> None:
    assert known_shape("Qwen/Qwen2.5-7B-Instruct") == known_shape("Qwen/Qwen2.5-7B")
    assert known_shape("Qwen/Qwen3-8B-Base") == known_shape("Qwen/Qwen3-8B")
    for name in ("Qwen/Qwen3-5B", "Qwen/Qwen2.5-7B-Instruct-1M", "Qwen/Qwen3-30B-A3B", "other/Qwen3-8B"):
        assert known_shape(name) is None
