"""The weights that the native engine holds, described by the sharding table (``weights/sharding/table.py``).

The engine holds all weights. Query, key and value are one tensor, and so are gate and up. Importing this file does not
import torch.
"""

from __future__ import annotations

from tailrace.engines.native.architecture import Architecture, weight_shapes
from tailrace.weights.sharding.table import Heads, Holding, Parameter, Scheme, holdings


def engine_layout(shape: Architecture, dtype: str) -> Holding:
    parameters = [Parameter(name=name, shape=sizes, dtype=dtype) for name, sizes in weight_shapes(shape).items()]
    heads = Heads(num_query=shape.num_heads, num_kv=shape.num_kv_heads, size=shape.head_dim)
    [holding] = holdings(parameters, heads, Scheme(is_fused=True), side="engine")
    return holding
