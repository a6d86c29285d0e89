"""Triton kernels of a transformer layer over a paged KV cache, and the functions that start them.

Letters: T tokens (rows of a decode batch, or packed prompts), H hidden, D head dimensions. A row whose position is
negative is empty: nothing is stored for it, and what is computed for it means nothing.

The pool of one layer's keys (or values) is ``[pages, kv_heads, page_size, D]``; ``blocks[slot]`` lists the pages of a
slot. Sums are in float32, whatever the type of the tensors. Every kernel is tested against plain torch.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from tailrace.engines.native.paged.kernel_set import QUERY_BLOCK, HeadShape, LayerPages, Places, QueryBlocks

KEY_BLOCK = 64
_MASKED = tl.constexpr(-1.0e30)
_BUSY_PROGRAMS = 1024
"""Decode attention splits the keys of a row until about this many programs run: several for each part of a GPU."""
_MOST_SPLITS = 32


@triton.jit
def _add_norm_kernel(x, y, weight, out, eps, H, HAS_Y: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    inside = d < H
    value = tl.load(x + row * H + d, mask=inside, other=0.0)
    if HAS_Y:
        # Rounded to the type of x before the norm, as if it had been stored and read again.
        added = value.to(tl.float32) + tl.load(y + row * H + d, mask=inside, other=0.0).to(tl.float32)
        value = added.to(x.dtype.element_ty)
        tl.store(x + row * H + d, value, mask=inside)
    value = value.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / H + eps)
    normed = value * scale * tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * H + d, normed.to(out.dtype.element_ty), mask=inside)


def add_norm(x: torch.Tensor, y: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Add ``y`` to ``x`` in place, and return the RMS norm of the sum."""
    out = torch.empty_like(x)
    block = triton.next_power_of_2(x.shape[1])
    warps = 8 if block >= 4096 else 4
    _add_norm_kernel[(x.shape[0],)](
        x, x if y is None else y, weight, out, eps, x.shape[1], HAS_Y=y is not None, BLOCK=block, num_warps=warps
    )
    return out


@triton.jit
def _gated_kernel(gate_up, out, INNER, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = d < INNER
    gate = tl.load(gate_up + row * 2 * INNER + d, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * INNER + INNER + d, mask=inside, other=0.0)
    silu = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty)
    tl.store(out + row * INNER + d, silu * up, mask=inside)


def gated(gate_up: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` of two halves that lie side by side."""
    num_rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(num_rows, inner)
    _gated_kernel[(num_rows, triton.cdiv(inner, 1024))](gate_up, out, inner, BLOCK=1024, num_warps=4)
    return out


@triton.jit
def _store_heads_kernel(
    qkv, keys, values, blocks, slots, positions, rotations, norms, eps, max_pages,
    NH: tl.constexpr, NKV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + token)
    if position >= 0:
        pair = tl.arange(0, D // 2)
        source = qkv + token * (NH + 2 * NKV) * D + head * D
        first = tl.load(source + 2 * pair).to(tl.float32)
        second = tl.load(source + 2 * pair + 1).to(tl.float32)
        if head < NH + NKV:
            if HAS_NORM:
                scale = tl.rsqrt((tl.sum(first * first, 0) + tl.sum(second * second, 0)) / D + eps)
                first = first * scale * tl.load(norms + head * D + 2 * pair).to(tl.float32)
                second = second * scale * tl.load(norms + head * D + 2 * pair + 1).to(tl.float32)
            cos = tl.load(rotations + position * D + 2 * pair)
            sin = tl.load(rotations + position * D + 2 * pair + 1)
            first, second = first * cos - second * sin, first * sin + second * cos
        if head < NH:
            tl.store(source + 2 * pair, first.to(qkv.dtype.element_ty))
            tl.store(source + 2 * pair + 1, second.to(qkv.dtype.element_ty))
        else:
            page = tl.load(blocks + tl.load(slots + token) * max_pages + position // PAGE).to(tl.int64)
            if head < NH + NKV:
                target = keys + ((page * NKV + head - NH) * PAGE + position % PAGE) * D
            else:
                target = values + ((page * NKV + head - NH - NKV) * PAGE + position % PAGE) * D
            tl.store(target + 2 * pair, first.to(keys.dtype.element_ty))
            tl.store(target + 2 * pair + 1, second.to(keys.dtype.element_ty))


def store_heads(
    qkv: torch.Tensor,
    pool: LayerPages,
    places: Places,
    rotations: torch.Tensor,
    norms: torch.Tensor | None,
    shape: HeadShape,
) -> None:
    """Norm (where the model has one) and rotate queries and keys; queries stay in ``qkv``, keys and values go to pages.

    ``rotations``: for each position, cosine and sine of every pair of neighbouring dimensions.
    """
    num_heads = shape.num_heads + 2 * shape.num_kv_heads
    _store_heads_kernel[(qkv.shape[0], num_heads)](
        qkv, pool.keys, pool.values, pool.blocks, places.slots, places.positions, rotations,
        qkv if norms is None else norms, shape.eps, pool.blocks.shape[1],
        NH=shape.num_heads, NKV=shape.num_kv_heads, D=shape.head_dim, PAGE=pool.page_size,
        HAS_NORM=norms is not None, num_warps=1,
    )  # fmt: skip


@triton.jit
def _attend_step(
    query, keys, values, block_row, at, end, limit, kv_head, top, total, sums, scale,
    NKV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One block of keys: the running maximum, the running total and the weighted sum of values, updated."""
    d = tl.arange(0, D)
    j = at + tl.arange(0, BLOCK)
    inside = j < end
    page = tl.load(block_row + j // PAGE, mask=inside, other=0).to(tl.int64)
    offset = ((page * NKV + kv_head) * PAGE + j % PAGE) * D
    key = tl.load(keys + offset[:, None] + d[None, :], mask=inside[:, None], other=0.0)
    score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    score = tl.where(inside[None, :] & (j[None, :] <= limit[:, None]), score, _MASKED)
    new_top = tl.maximum(top, tl.max(score, 1))
    weight = tl.exp(score - new_top[:, None])
    shrink = tl.exp(top - new_top)
    value = tl.load(values + offset[:, None] + d[None, :], mask=inside[:, None], other=0.0)
    sums = sums * shrink[:, None] + tl.dot(weight.to(value.dtype), value, input_precision="ieee")
    return new_top, total * shrink + tl.sum(weight, 1), sums


@triton.jit
def _attend_decode_kernel(
    qkv, keys, values, blocks, slots, positions, out, part_sums, part_tops, part_totals, max_pages, scale,
    NH: tl.constexpr, NKV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, GROUP: tl.constexpr,
    GB: tl.constexpr, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    row, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    position = tl.load(positions + row)
    num_keys = position + 1
    per_split = tl.cdiv(tl.cdiv(num_keys, SPLITS), BLOCK) * BLOCK
    start = split * per_split
    end = tl.minimum(start + per_split, num_keys)
    member, d = tl.arange(0, GB), tl.arange(0, D)
    in_group = (member < GROUP)[:, None]
    head = kv_head * GROUP + member
    query = tl.load(qkv + row * (NH + 2 * NKV) * D + head[:, None] * D + d[None, :], mask=in_group, other=0.0)
    block_row = blocks + tl.load(slots + row) * max_pages
    limit = tl.full([GB], 0, tl.int32) + position
    top, total = tl.full([GB], _MASKED, tl.float32), tl.zeros([GB], tl.float32)
    sums = tl.zeros([GB, D], tl.float32)
    for at in range(start, end, BLOCK):
        top, total, sums = _attend_step(
            query, keys, values, block_row, at, end, limit, kv_head, top, total, sums, scale, NKV, D, PAGE, BLOCK
        )
    if SPLITS == 1:
        result = sums / tl.maximum(total, 1e-30)[:, None]
        tl.store(out + (row * NH + head[:, None]) * D + d[None, :], result.to(out.dtype.element_ty), mask=in_group)
    else:
        part = ((row * NKV + kv_head) * SPLITS + split) * GB + member
        tl.store(part_sums + part[:, None] * D + d[None, :], sums, mask=in_group)
        tl.store(part_tops + part, top, mask=member < GROUP)
        tl.store(part_totals + part, total, mask=member < GROUP)


@triton.jit
def _combine_kernel(
    part_sums, part_tops, part_totals, out,
    NH: tl.constexpr, NKV: tl.constexpr, D: tl.constexpr, GROUP: tl.constexpr, GB: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    split, d = tl.arange(0, SPLITS), tl.arange(0, D)
    part = ((row * NKV + head // GROUP) * SPLITS + split) * GB + head % GROUP
    tops = tl.load(part_tops + part)
    weight = tl.exp(tops - tl.max(tops, 0))
    total = tl.sum(tl.load(part_totals + part) * weight, 0)
    sums = tl.sum(tl.load(part_sums + part[:, None] * D + d[None, :]) * weight[:, None], 0)
    tl.store(out + (row * NH + head) * D + d, (sums / tl.maximum(total, 1e-30)).to(out.dtype.element_ty))


def attend_decode(
    qkv: torch.Tensor, pool: LayerPages, places: Places, shape: HeadShape, num_splits: int | None = None
) -> torch.Tensor:
    """Attention of one new token per row over all positions up to its own. Returns ``[T, heads * D]``."""
    num_rows = qkv.shape[0]
    splits = _splits_for(num_rows * shape.num_kv_heads) if num_splits is None else num_splits
    out = qkv.new_empty(num_rows, shape.num_heads * shape.head_dim)
    sizes = (num_rows, shape.num_kv_heads, splits, _group_block(shape)) if splits > 1 else (1, 1, 1, 1)
    tops, totals = (torch.empty(sizes, device=qkv.device, dtype=torch.float32) for _ in range(2))
    sums = torch.empty((*sizes, shape.head_dim), device=qkv.device, dtype=torch.float32)
    common: dict[str, Any] = {
        "NH": shape.num_heads, "NKV": shape.num_kv_heads, "D": shape.head_dim, "GROUP": shape.group,
        "GB": _group_block(shape), "SPLITS": splits,
    }  # fmt: skip
    _attend_decode_kernel[(num_rows, shape.num_kv_heads, splits)](
        qkv, pool.keys, pool.values, pool.blocks, places.slots, places.positions, out, sums, tops, totals,
        pool.blocks.shape[1], shape.head_dim**-0.5, PAGE=pool.page_size, BLOCK=KEY_BLOCK, num_warps=4, **common,
    )  # fmt: skip
    if splits > 1:
        _combine_kernel[(num_rows, shape.num_heads)](sums, tops, totals, out, num_warps=1, **common)
    return out


def _group_block(shape: HeadShape) -> int:
    """Rows of the matrix product: Triton needs at least 16."""
    return max(16, int(triton.next_power_of_2(shape.group)))


def _splits_for(num_programs: int) -> int:
    wanted = int(triton.next_power_of_2(-(-_BUSY_PROGRAMS // num_programs)))
    return min(_MOST_SPLITS, max(1, wanted))


@triton.jit
def _attend_prefill_kernel(
    qkv, keys, values, blocks, first_token, num_tokens, first_position, slot, out, max_pages, scale,
    NH: tl.constexpr, NKV: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, GROUP: tl.constexpr,
    QUERIES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    entry, head = tl.program_id(0), tl.program_id(1)
    count, position = tl.load(num_tokens + entry), tl.load(first_position + entry)
    index, d = tl.arange(0, QUERIES), tl.arange(0, D)
    inside = (index < count)[:, None]
    token = tl.load(first_token + entry).to(tl.int64) + index
    query = tl.load(qkv + (token[:, None] * (NH + 2 * NKV) + head) * D + d[None, :], mask=inside, other=0.0)
    block_row = blocks + tl.load(slot + entry).to(tl.int64) * max_pages
    limit, end = position + index, position + count
    top, total = tl.full([QUERIES], _MASKED, tl.float32), tl.zeros([QUERIES], tl.float32)
    sums = tl.zeros([QUERIES, D], tl.float32)
    for at in range(0, end, BLOCK):
        top, total, sums = _attend_step(
            query, keys, values, block_row, at, end, limit, head // GROUP, top, total, sums, scale, NKV, D, PAGE, BLOCK
        )
    result = sums / tl.maximum(total, 1e-30)[:, None]
    tl.store(out + (token[:, None] * NH + head) * D + d[None, :], result.to(out.dtype.element_ty), mask=inside)


def attend_prefill(qkv: torch.Tensor, pool: LayerPages, blocks: QueryBlocks, shape: HeadShape) -> torch.Tensor:
    """Causal attention of packed tokens over what their slots hold, themselves included. Returns ``[T, heads * D]``."""
    out = qkv.new_empty(qkv.shape[0], shape.num_heads * shape.head_dim)
    _attend_prefill_kernel[(len(blocks.slot), shape.num_heads)](
        qkv, pool.keys, pool.values, pool.blocks, blocks.first_token, blocks.num_tokens, blocks.first_position,
        blocks.slot, out, pool.blocks.shape[1], shape.head_dim**-0.5,
        NH=shape.num_heads, NKV=shape.num_kv_heads, D=shape.head_dim, PAGE=pool.page_size, GROUP=shape.group,
        QUERIES=QUERY_BLOCK, BLOCK=KEY_BLOCK, num_warps=4,
    )  # fmt: skip
    return out
