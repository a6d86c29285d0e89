"""Triton kernels around the model in a decode step: what each row is, which token it gets, and how its slot goes on.

The random number of a token is that of ``randomness.py`` and the token that of ``sampler.py``: the first one whose
cumulative probability exceeds it. Rows with top-k, top-p or min-p are sampled by ``sampler.py`` itself.

Letters: N rows, V vocabulary. A row whose slot is negative, or whose request has ended, is empty (position -1).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tailrace.engines.native.paged.kernel_set import RowBuffers
from tailrace.engines.native.paged.slot_state import MAX_STOPS, SlotState

VOCABULARY_BLOCK = 2048
_NEVER = tl.constexpr(-1.0e30)
_STEP = tl.constexpr(0x9E3779B97F4A7C15)
_MIX_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_2 = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def _mix(bits):
    bits = (bits ^ (bits >> 30)) * _MIX_1
    bits = (bits ^ (bits >> 27)) * _MIX_2
    return bits ^ (bits >> 31)


@triton.jit
def _prepare_kernel(
    slots, state_position, state_token, state_prompt, state_key, state_done, positions, tokens, uniforms, gained,
    IS_FIRST: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    is_live = tl.load(state_done + slot, mask=slot >= 0, other=1) == 0
    position = tl.load(state_position + slot, mask=is_live, other=-1)
    token = tl.load(state_token + slot, mask=is_live, other=0)
    index = position + 1 - tl.load(state_prompt + slot, mask=is_live, other=0)
    bits = tl.load(state_key + slot, mask=is_live, other=0).to(tl.uint64) + (index.to(tl.uint64) + 1) * _STEP
    bits = _mix(_mix(bits))
    tl.store(uniforms + row, (bits >> 40).to(tl.float32) * 5.9604644775390625e-08)
    tl.store(positions + row, position)
    tl.store(tokens + row, token)
    if IS_FIRST:
        tl.store(gained + row, 0)


def prepare(rows: RowBuffers, state: SlotState, num_rows: int, *, is_first: bool) -> None:
    """Read the slot of each row: its position, its newest token, and the random number of its next token."""
    _prepare_kernel[(num_rows,)](
        rows.slots, state.position, state.token, state.prompt_length, state.key, state.is_done, rows.positions,
        rows.tokens, rows.uniforms, rows.results[-1], IS_FIRST=is_first, num_warps=1,
    )  # fmt: skip


@triton.jit
def _score_kernel(logits, slots, positions, temperature, tops, totals, likeliest, V, BLOCK: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(positions + row) >= 0:
        token = block * BLOCK + tl.arange(0, BLOCK)
        score = tl.load(logits + row * V + token, mask=token < V, other=float("-inf")).to(tl.float32)
        score = score / tl.load(temperature + tl.load(slots + row))
        top = tl.maximum(tl.max(score, 0), _NEVER)  # a block may be all -inf
        at = row * tl.num_programs(1) + block
        tl.store(tops + at, top)
        tl.store(totals + at, tl.sum(tl.exp(score - top), 0))
        tl.store(likeliest + at, block * BLOCK + tl.argmax(score, 0))


@triton.jit
def _pick_kernel(
    logits, slots, positions, temperature, is_greedy, uniforms, tops, totals, likeliest, tokens, logprobs, V,
    NUM_BLOCKS, BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if tl.load(positions + row) >= 0:
        slot = tl.load(slots + row)
        heat = tl.load(temperature + slot)
        number = tl.arange(0, BLOCKS)
        known = number < NUM_BLOCKS
        at = row * NUM_BLOCKS + number
        block_tops = tl.load(tops + at, mask=known, other=_NEVER)
        top = tl.max(block_tops, 0)
        # In fp64: rounded sums would give tokens without weight a place between others.
        mass = (tl.load(totals + at, mask=known, other=0.0) * tl.exp(block_tops - top)).to(tl.float64)
        sums = tl.cumsum(mass, 0)
        total = tl.max(sums, 0)
        wanted = tl.load(uniforms + row).to(tl.float64) * total
        block = tl.minimum(tl.sum(((sums <= wanted) & known).to(tl.int32), 0), NUM_BLOCKS - 1)
        before = tl.sum(tl.where(number < block, mass, 0.0), 0)
        token = block * BLOCK + tl.arange(0, BLOCK)
        score = tl.load(logits + row * V + token, mask=token < V, other=float("-inf")).to(tl.float32) / heat
        weight = tl.exp(score - top)
        inner = before + tl.cumsum(weight.to(tl.float64), 0)
        num_below = tl.sum(((inner <= wanted) & (token < V)).to(tl.int32), 0)
        # A block's own sum is in fp32. Where the random number falls between it and the sum here, the block's likeliest
        # token is right within rounding.
        is_between = (num_below >= BLOCK) | (wanted < before)
        is_between |= tl.sum(tl.where(tl.arange(0, BLOCK) == num_below, weight, 0.0), 0) <= 0.0
        chosen = tl.where(is_between, tl.load(likeliest + row * NUM_BLOCKS + block), block * BLOCK + num_below)
        if tl.load(is_greedy + slot) != 0:
            winner = tl.minimum(tl.argmax(block_tops, 0), NUM_BLOCKS - 1)  # the padding may win against NaN
            chosen = tl.load(likeliest + row * NUM_BLOCKS + winner)
        chosen = tl.minimum(tl.maximum(chosen, 0), V - 1)
        picked = tl.load(logits + row * V + chosen).to(tl.float32) / heat
        tl.store(tokens + row, chosen.to(tl.int64))
        tl.store(logprobs + row, picked - top - tl.log(total.to(tl.float32)))


def pick(logits: torch.Tensor, rows: RowBuffers, state: SlotState) -> None:
    """Sample one token for each row, without truncation."""
    num_rows, vocabulary = logits.shape
    num_blocks = triton.cdiv(vocabulary, VOCABULARY_BLOCK)
    tops, totals = (torch.empty(num_rows, num_blocks, device=logits.device) for _ in range(2))
    likeliest = torch.empty(num_rows, num_blocks, device=logits.device, dtype=torch.int32)
    _score_kernel[(num_rows, num_blocks)](
        logits, rows.slots, rows.positions, state.temperature, tops, totals, likeliest, vocabulary,
        BLOCK=VOCABULARY_BLOCK, num_warps=8,
    )  # fmt: skip
    _pick_kernel[(num_rows,)](
        logits, rows.slots, rows.positions, state.temperature, state.is_greedy, rows.uniforms, tops, totals, likeliest,
        rows.tokens, rows.logprobs, vocabulary, num_blocks,
        BLOCK=VOCABULARY_BLOCK, BLOCKS=triton.next_power_of_2(num_blocks), num_warps=8,
    )  # fmt: skip


@triton.jit
def _advance_kernel(
    slots, positions, tokens, logprobs, behaviour_logprobs, results, num_rows, state_position, state_token, state_end,
    state_done, stops, STEP: tl.constexpr, STEPS: tl.constexpr, STOPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    position = tl.load(positions + row)
    if position >= 0:
        slot, token = tl.load(slots + row), tl.load(tokens + row)
        logprob, full = tl.load(logprobs + row), tl.load(behaviour_logprobs + row)
        tl.store(results + STEP * num_rows + row, token.to(tl.int32))
        tl.store(results + (STEPS + STEP) * num_rows + row, logprob.to(tl.int32, bitcast=True))
        tl.store(results + (2 * STEPS + STEP) * num_rows + row, full.to(tl.int32, bitcast=True))
        tl.store(results + 3 * STEPS * num_rows + row, STEP + 1)
        stop = tl.load(stops + slot * STOPS + tl.arange(0, STOPS))
        is_stopped = tl.max((stop == token).to(tl.int32), 0)
        # The new token has index position + 1, so the sequence is position + 2 long.
        is_full = (position + 2 >= tl.load(state_end + slot)).to(tl.int32)
        tl.store(state_token + slot, token)
        tl.store(state_position + slot, position + 1)
        tl.store(state_done + slot, tl.maximum(is_stopped, is_full))


def advance(
    rows: RowBuffers, state: SlotState, num_rows: int, *, step: int, num_steps: int, is_truncated: bool
) -> None:
    """Write down each row's token, and continue or end its slot."""
    full = rows.behaviour_logprobs if is_truncated else rows.logprobs
    _advance_kernel[(num_rows,)](
        rows.slots, rows.positions, rows.tokens, rows.logprobs, full, rows.results, rows.results.shape[1],
        state.position, state.token, state.end, state.is_done, state.stops,
        STEP=step, STEPS=num_steps, STOPS=MAX_STOPS, num_warps=1,
    )  # fmt: skip
