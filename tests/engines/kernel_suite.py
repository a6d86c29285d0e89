"""Every Triton kernel gives what plain torch gives. A test module imports the tests and says for which
``device`` and ``dtype``."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tailrace.engines.native.paged.kernel_set import QUERY_BLOCK, HeadShape, LayerPages, Places, QueryBlocks, RowBuffers
from tailrace.engines.native.paged.layer_kernels import attend_decode
from tailrace.engines.native.paged.reference_kernels import REFERENCE
from tailrace.engines.native.paged.slot_state import SlotState
from tailrace.engines.native.paged.triton_kernels import TRITON

PAGE = 16
SHAPES = [
    HeadShape(num_heads=6, num_kv_heads=2, head_dim=16, eps=1e-5),
    HeadShape(num_heads=2, num_kv_heads=2, head_dim=32, eps=1e-6),
    HeadShape(num_heads=7, num_kv_heads=1, head_dim=64, eps=1e-6),
]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
shapes = pytest.mark.parametrize("shape", SHAPES, ids=["grouped", "plain", "wide"])


def randn(*sizes: int, dtype: torch.dtype, device: str, seed: int = 0) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def assert_close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(found.float(), expected.float(), atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def make_pool(shape: HeadShape, dtype: torch.dtype, device: str, seed: int = 0) -> LayerPages:
    """Five slots of up to ten pages, the pages in random order."""
    sizes = (50, shape.num_kv_heads, PAGE, shape.head_dim)
    blocks = torch.from_numpy(np.random.default_rng(seed).permutation(50).reshape(5, 10).astype(np.int32))
    keys, values = (randn(*sizes, dtype=dtype, device=device, seed=seed + i) for i in range(2))
    return LayerPages(keys=keys, values=values, blocks=blocks.to(device))


def make_places(positions: list[int], device: str) -> Places:
    slots = torch.arange(len(positions), dtype=torch.int32)
    return Places(slots=slots.to(device), positions=torch.tensor(positions, dtype=torch.int32).to(device))


def make_qkv(num_tokens: int, shape: HeadShape, dtype: torch.dtype, device: str) -> torch.Tensor:
    width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    return randn(num_tokens, width, dtype=dtype, device=device, seed=9)


@pytest.mark.parametrize("has_update", [True, False])
@pytest.mark.parametrize("hidden", [48, 128])
def test_add_norm(device: str, dtype: torch.dtype, has_update: bool, hidden: int) -> None:
    x, y, weight = (
        randn(*size, dtype=dtype, device=device, seed=i) for i, size in enumerate([(5, hidden)] * 2 + [(hidden,)])
    )
    other = x.clone()
    found = TRITON.add_norm(x, y if has_update else None, weight, 1e-5)
    assert_close(found, REFERENCE.add_norm(other, y if has_update else None, weight, 1e-5), dtype)
    assert torch.equal(x, other), "the sum is not the same to the last bit"


def test_gated(device: str, dtype: torch.dtype) -> None:
    gate_up = randn(3, 2 * 1100, dtype=dtype, device=device)
    assert_close(TRITON.gated(gate_up), REFERENCE.gated(gate_up), dtype)


@shapes
@pytest.mark.parametrize("has_norm", [True, False])
def test_store_heads(device: str, dtype: torch.dtype, shape: HeadShape, has_norm: bool) -> None:
    places = make_places([0, 15, 16, -1, 131], device)
    angles = torch.outer(torch.arange(160.0), torch.linspace(1.0, 0.01, shape.head_dim // 2))
    rotations = torch.stack([angles.cos(), angles.sin()], dim=2).flatten(1).contiguous().to(device)
    norms = (
        randn(shape.num_heads + shape.num_kv_heads, shape.head_dim, dtype=dtype, device=device) if has_norm else None
    )
    results = []
    for kernels in (TRITON, REFERENCE):
        qkv, pool = make_qkv(5, shape, dtype, device), make_pool(shape, dtype, device)
        kernels.store_heads(qkv, pool, places, rotations, norms, shape)
        live = places.positions >= 0
        results.append((qkv[live, : shape.num_heads * shape.head_dim], pool.keys, pool.values))
    for found, expected in zip(*results, strict=True):
        assert_close(found, expected, dtype)


@shapes
@pytest.mark.parametrize("num_splits", [1, 2, 8])
def test_attend_decode(device: str, dtype: torch.dtype, shape: HeadShape, num_splits: int) -> None:
    qkv, pool = make_qkv(5, shape, dtype, device), make_pool(shape, dtype, device)
    places = make_places([0, 15, -1, 64, 159], device)
    found = attend_decode(qkv, pool, places, shape, num_splits)
    live = places.positions >= 0
    assert_close(found[live], REFERENCE.attend_decode(qkv, pool, places, shape)[live], dtype)
    assert found.isfinite().all()


@shapes
def test_attend_prefill(device: str, dtype: torch.dtype, shape: HeadShape) -> None:
    """Three sequences: a whole prompt of one token, one of more than a block, and a chunk behind earlier ones."""
    entries = [(0, 1, 0, 2), (1, QUERY_BLOCK, 0, 0), (1 + QUERY_BLOCK, 6, QUERY_BLOCK, 0), (7 + QUERY_BLOCK, 20, 77, 4)]
    columns = torch.tensor(entries, dtype=torch.int32).t().contiguous().to(device)
    blocks = QueryBlocks(first_token=columns[0], num_tokens=columns[1], first_position=columns[2], slot=columns[3])
    qkv, pool = make_qkv(27 + QUERY_BLOCK, shape, dtype, device), make_pool(shape, dtype, device)
    assert_close(
        TRITON.attend_prefill(qkv, pool, blocks, shape), REFERENCE.attend_prefill(qkv, pool, blocks, shape), dtype
    )


def make_state(device: str) -> SlotState:
    """Slots 0 to 3 are at different places; slot 2 is done, slot 3 is greedy and hot."""
    state = SlotState(4, torch.device(device))
    state.token.copy_(torch.tensor([5, 6, 7, 8]))
    state.position.copy_(torch.tensor([9, 30, 4, 17]))
    state.end.copy_(torch.tensor([11, 100, 100, 100]))
    state.prompt_length.copy_(torch.tensor([4, 31, 2, 10]))
    state.key.copy_(torch.tensor([-(2**63), 123456789, 5, 2**62 + 11]))
    state.is_done.copy_(torch.tensor([0, 0, 1, 0]))
    state.is_greedy.copy_(torch.tensor([0, 0, 0, 1]))
    state.temperature.copy_(torch.tensor([1.0, 0.7, 1.0, 1.0]))
    return state


def make_rows(device: str) -> RowBuffers:
    rows = RowBuffers.allocate(5, 2, torch.device(device))
    rows.slots.copy_(torch.tensor([3, 0, -1, 2, 1]))
    return rows


def test_prepare(device: str) -> None:
    found, expected, state = make_rows(device), make_rows(device), make_state(device)
    found.results.fill_(7)
    TRITON.prepare(found, state, 5, is_first=True)
    REFERENCE.prepare(expected, state, 5, is_first=True)
    assert found.positions.tolist() == expected.positions.tolist() == [17, 9, -1, -1, 30]
    assert found.tokens[[0, 1, 4]].tolist() == expected.tokens[[0, 1, 4]].tolist() == [8, 5, 6]
    assert found.uniforms[[0, 1, 4]].tolist() == expected.uniforms[[0, 1, 4]].tolist()
    assert found.results[-1].tolist() == [0] * 5
    found.results.fill_(7)
    TRITON.prepare(found, state, 5, is_first=False)
    assert found.results[-1].tolist() == [7] * 5, "only the first step of a replay begins to count"


@pytest.mark.parametrize("vocabulary", [32, 5000, 49152])
def test_pick(device: str, dtype: torch.dtype, vocabulary: int) -> None:
    found, expected, state = make_rows(device), make_rows(device), make_state(device)
    logits = 3 * randn(5, vocabulary, dtype=dtype, device=device)
    for kernels, rows in ((TRITON, found), (REFERENCE, expected)):
        kernels.prepare(rows, state, 5, is_first=True)
        kernels.pick(logits, rows, state)
    live = found.positions >= 0
    assert found.tokens[live].tolist() == expected.tokens[live].tolist()
    assert_close(found.logprobs[live], expected.logprobs[live], torch.float32)


@pytest.mark.parametrize("uniform", [0.0, 0.25, 0.5, 1.0 - 2.0**-24])
def test_pick_at_the_ends_of_the_distribution(device: str, uniform: float) -> None:
    """Equal logits: the token is the share of the vocabulary below the random number."""
    rows, state = make_rows(device), make_state(device)
    TRITON.prepare(rows, state, 5, is_first=True)
    rows.uniforms.fill_(uniform)
    TRITON.pick(torch.zeros(5, 4096, device=device), rows, state)
    assert rows.tokens[[1, 4]].tolist() == [int(uniform * 4096)] * 2
    assert rows.tokens[0].item() == 0, "greedy takes the first of equal tokens"


def test_pick_takes_no_token_without_weight_where_two_blocks_meet(device: str) -> None:
    """Around every border of the blocks' sums, where the two ways to add up are rounded differently."""
    blocks, size = 12, 2048
    logits = 2 * torch.randn(1, blocks, size, generator=torch.Generator().manual_seed(3))
    logits[..., :8] = logits[..., -8:] = -60.0  # nobody should ever see these
    logits = logits.flatten(1)
    borders = torch.softmax(logits[0].double(), 0).view(blocks, size).sum(1).cumsum(0)[:-1].float()
    uniforms = torch.stack([borders + offset * 2.0**-24 for offset in range(-4, 4)]).flatten()
    rows, state = RowBuffers.allocate(len(uniforms), 2, torch.device(device)), make_state(device)
    rows.slots.fill_(0)  # one that samples, at temperature 1
    TRITON.prepare(rows, state, len(uniforms), is_first=True)
    rows.uniforms.copy_(uniforms)
    TRITON.pick(logits.expand(len(uniforms), -1).contiguous().to(device), rows, state)
    assert all(8 <= token % size < size - 8 for token in rows.tokens.tolist())


@pytest.mark.parametrize("seed", [1, 4, 9])
def test_pick_takes_no_token_without_weight_at_the_end(device: str, seed: int) -> None:
    """The largest random number there is, and a last block that nobody should ever see."""
    logits = 2 * torch.randn(1, 24 * 2048, generator=torch.Generator().manual_seed(seed)).repeat(5, 1)
    logits[1, -2048:], logits[4, -2048:] = -60.0, -torch.inf
    rows, state = make_rows(device), make_state(device)
    state.temperature.fill_(1.0)
    TRITON.prepare(rows, state, 5, is_first=True)
    rows.uniforms.fill_(1 - 2.0**-24)
    TRITON.pick(logits.to(device), rows, state)
    assert all(token < 23 * 2048 for token in rows.tokens[[1, 4]].tolist())


def test_pick_survives_a_block_without_any_possible_token(device: str) -> None:
    logits = torch.full((5, 3 * 2048), -torch.inf)
    logits[:, 2048 + 5] = 1.0
    rows, state = make_rows(device), make_state(device)
    TRITON.prepare(rows, state, 5, is_first=True)
    TRITON.pick(logits.to(device), rows, state)
    assert rows.tokens[[0, 1, 4]].tolist() == [2048 + 5] * 3
    assert rows.logprobs[[0, 1, 4]].tolist() == [0.0] * 3


@pytest.mark.parametrize("is_truncated", [False, True])
def test_advance(device: str, is_truncated: bool) -> None:
    results = []
    for kernels in (TRITON, REFERENCE):
        rows, state = make_rows(device), make_state(device)
        state.stops[1, 3] = 42
        kernels.prepare(rows, state, 5, is_first=True)
        for step, tokens in enumerate([[1, 2, 3, 4, 41], [1, 2, 3, 4, 42]]):
            kernels.prepare(rows, state, 5, is_first=step == 0)
            rows.tokens.copy_(torch.tensor(tokens))
            rows.logprobs.fill_(-0.5 - step)
            rows.behaviour_logprobs.fill_(-1.5 - step)
            kernels.advance(rows, state, 5, step=step, num_steps=2, is_truncated=is_truncated)
        results.append([part.tolist() for part in (rows.results, state.token, state.position, state.is_done)])
    assert results[0] == results[1]
    assert results[0][3] == [1, 1, 1, 0], "slot 0 reached its end, slot 1 its stop token"
    assert results[0][0][-1] == [2, 1, 0, 0, 2]
