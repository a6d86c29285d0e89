"""The operations of the paged runner as Triton kernels."""

from __future__ import annotations

from tailrace.engines.native.paged import layer_kernels, sampling_kernels
from tailrace.engines.native.paged.kernel_set import KernelSet

TRITON = KernelSet(
    add_norm=layer_kernels.add_norm,
    gated=layer_kernels.gated,
    store_heads=layer_kernels.store_heads,
    attend_decode=layer_kernels.attend_decode,
    attend_prefill=layer_kernels.attend_prefill,
    prepare=sampling_kernels.prepare,
    pick=sampling_kernels.pick,
    advance=sampling_kernels.advance,
)
