"""The operations of the paged runner in plain torch: for CPUs, and to compare the Triton kernels with."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from tailrace.engines.native.paged.kernel_set import HeadShape, KernelSet, LayerPages, Places, QueryBlocks, RowBuffers
from tailrace.engines.native.paged.slot_state import SlotState
from tailrace.engines.native.randomness import uniforms
from tailrace.engines.native.sampler import sample


def add_norm(x: torch.Tensor, y: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    if y is not None:
        x.add_(y)
    return F.rms_norm(x, (x.shape[1],), weight, eps)


def gated(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=1)
    return F.silu(gate) * up


def store_heads(
    qkv: torch.Tensor,
    pool: LayerPages,
    places: Places,
    rotations: torch.Tensor,
    norms: torch.Tensor | None,
    shape: HeadShape,
) -> None:
    heads = qkv.unflatten(1, (-1, shape.head_dim))
    rotated = heads[:, : -shape.num_kv_heads].float()
    if norms is not None:
        rotated = F.rms_norm(rotated, (shape.head_dim,), None, shape.eps) * norms
    turns = torch.view_as_complex(rotations.unflatten(1, (-1, 2))).index_select(0, places.positions.clamp(min=0))
    pairs = torch.view_as_complex(rotated.unflatten(2, (-1, 2)).contiguous())
    heads[:, : -shape.num_kv_heads] = torch.view_as_real(pairs * turns.unsqueeze(1)).flatten(2).to(qkv.dtype)
    is_live = places.positions >= 0
    positions, slots = places.positions[is_live].long(), places.slots[is_live].long()
    pages = pool.blocks[slots, positions // pool.page_size].long()
    keys, values = heads[is_live, shape.num_heads :].chunk(2, dim=1)
    pool.keys[pages, :, positions % pool.page_size] = keys
    pool.values[pages, :, positions % pool.page_size] = values


def attend_decode(qkv: torch.Tensor, pool: LayerPages, places: Places, shape: HeadShape) -> torch.Tensor:
    queries = qkv[:, : shape.num_heads * shape.head_dim].unflatten(1, (-1, shape.head_dim))
    rows = [
        _attend(query[None], pool, max(int(slot), 0), torch.tensor([max(int(position), 0)]), shape)
        for query, slot, position in zip(queries, places.slots, places.positions, strict=True)
    ]
    return torch.cat(rows)


def attend_prefill(qkv: torch.Tensor, pool: LayerPages, blocks: QueryBlocks, shape: HeadShape) -> torch.Tensor:
    queries = qkv[:, : shape.num_heads * shape.head_dim].unflatten(1, (-1, shape.head_dim))
    out = queries.new_zeros(qkv.shape[0], shape.num_heads * shape.head_dim)
    columns = (blocks.first_token, blocks.num_tokens, blocks.first_position, blocks.slot)
    for first, count, position, slot in zip(*(column.tolist() for column in columns), strict=True):
        positions = torch.arange(position, position + count)
        out[first : first + count] = _attend(queries[first : first + count], pool, slot, positions, shape)
    return out


def _attend(
    queries: torch.Tensor, pool: LayerPages, slot: int, positions: torch.Tensor, shape: HeadShape
) -> torch.Tensor:
    """Attention of queries of one slot, ``[tokens, heads, D]``, over all positions up to each one's own."""
    num_keys = int(positions.max()) + 1
    pages = pool.blocks[slot, : -(-num_keys // pool.page_size)].long()
    keys, values = (part[pages].transpose(0, 1).flatten(1, 2)[:, :num_keys] for part in (pool.keys, pool.values))
    is_visible = torch.arange(num_keys) <= positions[:, None]
    attended = F.scaled_dot_product_attention(
        queries.transpose(0, 1)[None],
        keys[None],
        values[None],
        attn_mask=is_visible.to(queries.device),
        enable_gqa=shape.num_heads != shape.num_kv_heads,
    )
    return attended[0].transpose(0, 1).flatten(1)


def prepare(rows: RowBuffers, state: SlotState, num_rows: int, *, is_first: bool) -> None:
    slots = rows.slots[:num_rows].long().clamp(min=0)
    is_live = (rows.slots[:num_rows] >= 0) & (state.is_done[slots] == 0)
    positions = torch.where(is_live, state.position[slots], -1)
    keys = state.key[slots].cpu().numpy().view(np.uint64)
    index = (positions + 1 - state.prompt_length[slots]).cpu().numpy().astype(np.int64)
    rows.positions[:num_rows] = positions
    rows.tokens[:num_rows] = torch.where(is_live, state.token[slots], 0)
    rows.uniforms[:num_rows] = torch.from_numpy(uniforms(keys, index)).to(rows.uniforms.device)
    if is_first:
        rows.results[-1, :num_rows] = 0


def pick(logits: torch.Tensor, rows: RowBuffers, state: SlotState) -> None:
    num_rows = logits.shape[0]
    settings = state.sampling(rows.slots[:num_rows])
    untruncated = replace(settings, top_k_N1=None, top_p_N1=None, log_min_p_N1=None, is_truncated_N1=None)
    tokens, logprobs, _ = sample(logits, rows.uniforms[:num_rows], untruncated)
    rows.tokens[:num_rows] = tokens
    rows.logprobs[:num_rows] = logprobs


def advance(
    rows: RowBuffers, state: SlotState, num_rows: int, *, step: int, num_steps: int, is_truncated: bool
) -> None:
    live = torch.nonzero(rows.positions[:num_rows] >= 0).squeeze(1)
    slots, positions, tokens = rows.slots[live].long(), rows.positions[live], rows.tokens[live]
    full = rows.behaviour_logprobs if is_truncated else rows.logprobs
    rows.results[step, live] = tokens.int()
    rows.results[num_steps + step, live] = rows.logprobs[live].view(torch.int32)
    rows.results[2 * num_steps + step, live] = full[live].view(torch.int32)
    rows.results[-1, live] = step + 1
    is_stopped = (state.stops[slots] == tokens[:, None]).any(dim=1)
    state.token[slots] = tokens
    state.position[slots] = positions + 1
    # The new token has index position + 1, so the sequence is position + 2 long.
    state.is_done[slots] = (is_stopped | (positions + 2 >= state.end[slots])).int()


REFERENCE = KernelSet(
    add_norm=add_norm,
    gated=gated,
    store_heads=store_heads,
    attend_decode=attend_decode,
    attend_prefill=attend_prefill,
    prepare=prepare,
    pick=pick,
    advance=advance,
)
