"""The positions of a model, as vLLM reads them from ``config.json``."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.store.positions import positions_of


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 1e4, "rope_type": kind, **parameters}}


FULL, SLIDING = {"rope_type": "linear", "factor": 8.0}, {"rope_type": "default"}
YARN = {"factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({"max_position_embeddings": 512}, 512),
        ({"n_positions": 1024}, 1024),
        ({"max_position_embeddings": 512, "seq_length": 256}, 256),
        ({"max_position_embeddings": 512, "model_max_length": 2048}, 2048),
        ({"max_position_embeddings": 512} | rope("default"), 512),
        ({"max_position_embeddings": 512} | rope("linear", factor=4.0), 2048),
        ({"max_position_embeddings": 512} | rope("dynamic", factor=2.0), 1024),
        ({"max_position_embeddings": 512} | rope("llama3", factor=8.0, original_max_position_embeddings=64), 512),
        ({"max_position_embeddings": 512} | rope("longrope", factor=8.0, original_max_position_embeddings=64), 512),
        ({"max_position_embeddings": 512} | rope("yarn", **YARN), 512),
        ({"max_position_embeddings": 128} | rope("yarn", **YARN), 512),
        ({"max_position_embeddings": 160} | rope("yarn", **YARN), 512),
        ({"max_position_embeddings": 512, "rope_scaling": {"type": "linear", "factor": 2}}, 1024),
        ({"max_position_embeddings": 512, "rope_scaling": {"type": "su", "factor": 2}}, 512),
        ({"max_position_embeddings": 512, "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}}, 512),
        ({"max_position_embeddings": 512, "rope_scaling": None}, 512),
        ({"max_position_embeddings": 512} | rope("linear", factor=None), 512),
        ({"max_position_embeddings": 512, "rope_parameters": {"full": FULL, "sliding": SLIDING}}, 4096),
        ({"max_position_embeddings": 512, "model_type": "gemma3_text"} | rope("linear", factor=8.0), 512),
        ({"text_config": {"max_position_embeddings": 256}, "max_position_embeddings": 512}, 256),
    ],
)
def test_positions_are_counted_with_rope_scaling(config: dict[str, Any], count: int) -> None:
    positions = positions_of(config)
    assert positions is not None
    assert positions.count == count


@pytest.mark.parametrize("config", [{}, {"max_position_embeddings": None}, {"max_position_embeddings": -1}])
def test_a_model_may_have_no_limit(config: dict[str, Any]) -> None:
    assert positions_of(config) is None


@pytest.mark.parametrize(
    ("config", "how"),
    [
        ({"max_position_embeddings": 512}, "max_position_embeddings"),
        (
            {"max_position_embeddings": 512} | rope("linear", factor=4.0),
            "max_position_embeddings 512 x 4, rope scaling 'linear'",
        ),
        (
            {"max_position_embeddings": 128} | rope("yarn", **YARN),
            "original_max_position_embeddings 128 x 4, rope scaling 'yarn'",
        ),
    ],
)
def test_the_number_says_where_it_comes_from(config: dict[str, Any], how: str) -> None:
    positions = positions_of(config)
    assert positions is not None
    assert positions.how == how
