from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.weights.sharding.table import Heads, Parameter, Scheme, holdings, share, volume, whole
from weights.models import HEADS, SCHEMES, parameters

ATTENTION = "model.layers.0.self_attn."


def test_the_drawing_in_the_docstring() -> None:
    heads = Heads(num_query=4, num_kv=2, size=2)
    [_, second] = holdings(parameters(heads), heads, Scheme(num_workers=2, is_fused=True), side="engine")
    assert second.worker == "engine 1"
    qkv = [p for p in second.pieces if p.tensor == f"{ATTENTION}qkv_proj.weight"]
    assert [(p.parameter, p.box, p.offset) for p in qkv] == [
        (f"{ATTENTION}q_proj.weight", ((4, 8), (0, 3)), (0, 0)),
        (f"{ATTENTION}k_proj.weight", ((2, 4), (0, 3)), (4, 0)),
        (f"{ATTENTION}v_proj.weight", ((2, 4), (0, 3)), (6, 0)),
    ]
    shapes = dict(second.tensors)
    assert shapes[f"{ATTENTION}qkv_proj.weight"] == (8, 3)
    assert shapes[f"{ATTENTION}qkv_proj.bias"] == (8,)
    assert shapes[f"{ATTENTION}o_proj.weight"] == (3, 4)
    assert shapes[f"{ATTENTION}o_proj.bias"] == (3,), "every worker has all of it"
    assert shapes["model.layers.0.mlp.gate_up_proj.weight"] == (6, 3)
    assert shapes["model.layers.0.mlp.down_proj.weight"] == (3, 3)


@pytest.mark.parametrize(
    ("num_query", "num_kv", "num_workers", "queries", "keys"),
    [
        (4, 2, 2, [(0, 2), (2, 4)], [(0, 1), (1, 2)]),
        (6, 3, 2, [(0, 2), (2, 6)], [(0, 1), (1, 3)]),
        (4, 2, 4, [(0, 1), (1, 2), (2, 3), (3, 4)], [(0, 1), (0, 1), (1, 2), (1, 2)]),
        (7, 1, 2, [(0, 3), (3, 7)], [(0, 1), (0, 1)]),
    ],
)
def test_heads_are_given_out_in_groups_or_their_keys_are_kept_twice(
    num_query: int, num_kv: int, num_workers: int, queries: list, keys: list
) -> None:
    heads = Heads(num_query=num_query, num_kv=num_kv, size=4)
    assert [heads.queries(worker, num_workers) for worker in range(num_workers)] == queries
    assert [heads.keys(worker, num_workers) for worker in range(num_workers)] == keys


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="5 query heads"):
        Heads(num_query=5, num_kv=2, size=4)


@given(total=st.integers(0, 50), num_workers=st.integers(1, 9))
def test_shares_follow_each_other_and_differ_by_at_most_one(total: int, num_workers: int) -> None:
    shares = [share(total, worker, num_workers) for worker in range(num_workers)]
    assert [start for start, _ in shares] == [0, *(stop for _, stop in shares[:-1])]
    assert shares[-1][1] == total
    sizes = [stop - start for start, stop in shares]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=60, deadline=None)
@given(heads=HEADS, scheme=SCHEMES)
def test_the_workers_of_a_side_keep_every_parameter_and_their_pieces_fill_their_tensors(
    heads: Heads, scheme: Scheme
) -> None:
    model = parameters(heads)
    workers = holdings(model, heads, scheme, side="side")
    for parameter in model:
        kept = {
            index
            for holding in workers
            for piece in holding.pieces
            if piece.parameter == parameter.name
            for index in _indices(piece.box)
        }
        assert kept == set(_indices(parameter.box))
    for holding in workers:
        for tensor, shape in holding.tensors:
            pieces = [piece for piece in holding.pieces if piece.tensor == tensor]
            assert sum(volume(piece.box) for piece in pieces) == math.prod(shape)


def test_a_worker_that_keeps_everything() -> None:
    model = [Parameter(name="a", shape=(2, 3), dtype="float32"), Parameter(name="b", shape=(), dtype="float32")]
    holding = whole(model, "server")
    assert holding.tensors == (("a", (2, 3)), ("b", ()))
    assert [(piece.box, piece.offset) for piece in holding.pieces] == [(((0, 2), (0, 3)), (0, 0)), ((), ())]


def _indices(box: tuple) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for start, stop in box:
        found = [(*index, at) for index in found for at in range(start, stop)]
    return found
