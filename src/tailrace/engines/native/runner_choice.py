"""Chooses the runner of an engine, and the batcher that plans for it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from tailrace.engines.contract import Unsupported
from tailrace.engines.native.architecture import Architecture
from tailrace.engines.native.batcher import Batcher
from tailrace.engines.native.limits import Decoding, EngineLimits
from tailrace.engines.native.paged.kernel_set import QUERY_BLOCK, KernelSet
from tailrace.engines.native.paged.kv_pages import PageTable
from tailrace.engines.native.paged.paged_runner import PagedRunner
from tailrace.engines.native.paged.reference_kernels import REFERENCE
from tailrace.engines.native.paged_support import known_obstacle, plain_line
from tailrace.engines.native.plain_runner import PlainRunner
from tailrace.engines.native.prefill import PrefillMeter
from tailrace.engines.native.rows import RowTable
from tailrace.engines.native.runner import Runner
from tailrace.engines.native.sequences import SlotTable

PAGE_SIZE = 16
"""Positions of one page of the KV cache."""
STEPS_PER_REPLAY = 8
"""Tokens that one replay adds to a sequence. The host reads results once per replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerChoice:
    """The runner of an engine, and the batcher that plans for it."""

    runner: Runner
    batcher: Batcher[Any]
    meter: PrefillMeter
    tokens_per_step: int
    note: str | None = None
    """Why ``auto`` decodes without pages on a GPU; None if it does not."""


class DecodingChoice(NamedTuple):
    is_paged: bool
    note: str | None = None
    """As in ``RunnerChoice``."""


def choose_runner(
    shape: Architecture,
    limits: EngineLimits,
    table: SlotTable,
    *,
    device: torch.device,
    dtype: torch.dtype,
    deterministic: bool,
    decoding: Decoding,
    may_release: bool,
) -> RunnerChoice:
    meter = PrefillMeter()
    is_paged, note = choose_decoding(shape, device, dtype, deterministic, decoding)
    if not is_paged:
        batcher = Batcher(limits, RowTable(limits.capacities), deterministic=deterministic)
        plain = PlainRunner(shape, batcher, table, meter, device=device, dtype=dtype)
        return RunnerChoice(runner=plain, batcher=batcher, meter=meter, tokens_per_step=1, note=note)
    kernels = _kernels_for(device)
    num_pages = max(limits.kv_budget // PAGE_SIZE, -(-limits.max_length // PAGE_SIZE))
    pages = PageTable(
        num_slots=limits.max_running, max_length=limits.max_length, num_pages=num_pages, page_size=PAGE_SIZE
    )
    # The host is one replay behind, so a sequence may be two replays further than the host knows.
    paged = Batcher(limits, pages, kv_budget=num_pages * PAGE_SIZE, lookahead=2 * STEPS_PER_REPLAY, is_packed=True)
    runner = PagedRunner(
        shape,
        paged,
        table,
        kernels,
        device=device,
        dtype=dtype,
        num_steps=STEPS_PER_REPLAY,
        may_release=may_release,
    )
    return RunnerChoice(runner=runner, batcher=paged, meter=meter, tokens_per_step=STEPS_PER_REPLAY)


def _kernels_for(device: torch.device) -> KernelSet:
    if device.type != "cuda":
        return REFERENCE
    from tailrace.engines.native.paged.triton_kernels import TRITON  # only GPUs need Triton

    return TRITON


def choose_decoding(
    shape: Architecture, device: torch.device, dtype: torch.dtype, deterministic: bool, decoding: Decoding
) -> DecodingChoice:
    if decoding is Decoding.PLAIN:
        return DecodingChoice(is_paged=False)
    obstacle = _obstacle(shape, device, dtype, deterministic)
    if decoding is Decoding.PAGED and obstacle:
        raise Unsupported(f"the native engine cannot decode with pages here: {obstacle}")
    if decoding is Decoding.AUTO and device.type != "cuda":
        return DecodingChoice(is_paged=False)
    return DecodingChoice(is_paged=not obstacle, note=plain_line(obstacle) if obstacle else None)


def _obstacle(shape: Architecture, device: torch.device, dtype: torch.dtype, deterministic: bool) -> str | None:
    if known := known_obstacle(shape.head_dim, deterministic=deterministic, is_cuda=device.type == "cuda"):
        return known
    if dtype == torch.float64:
        return "float64 is only for the plain path"
    if device.type != "cuda":
        return None
    if find_spec("triton") is None:
        return "the package triton is not installed"
    if device.index not in (None, torch.cuda.current_device()):
        return f"{device} is not the current device of this process"
    has = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
    needs = attention_shared_memory(shape.head_dim, dtype.itemsize)
    return f"attention needs {needs:,} bytes of shared memory, this GPU has {has:,}" if needs > has else None


def attention_shared_memory(head_dim: int, itemsize: int) -> int:
    """Bytes of shared memory of prefill attention: a block each of queries, keys and values, and their weights."""
    return (3 * head_dim + QUERY_BLOCK) * QUERY_BLOCK * itemsize + 512
