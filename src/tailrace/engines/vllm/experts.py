"""Experts of a mixture: Transformers holds all experts of a layer in one tensor, checkpoints hold each by itself.

vLLM reads the names of checkpoints. Given the one tensor it may take rows for columns without an error, so a layer's
tensor is taken apart before vLLM sees it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from torch import Tensor

from tailrace.engines.contract import Unsupported
from tailrace.store.tensor_file import tensor_names
from tailrace.weights.sharding.table import Parameter

_GATE_UP, _DOWN = ".experts.gate_up_proj", ".experts.down_proj"


def check_experts(checkpoint: Path, parameters: Iterable[Parameter]) -> None:
    """``Unsupported`` if the checkpoint names its experts in a way that ``single_experts`` does not."""
    in_checkpoint = tensor_names(checkpoint)
    for parameter in parameters:
        for name in _names(parameter.name, expert=0):
            if name not in in_checkpoint:
                raise Unsupported(
                    f"the vllm engine cannot pull the experts of this model: its checkpoint has no tensor '{name}'"
                )


def single_experts(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the parts of a tensor of experts under their names in a checkpoint; any other tensor as it is."""
    if not _names(name, expert=0):
        yield name, tensor
        return
    for expert, own in enumerate(tensor):
        names = _names(name, expert)
        yield from zip(names, own.chunk(len(names)), strict=True)


def _names(name: str, expert: int) -> list[str]:
    """Names of one expert's tensors in a checkpoint, in the order of their rows; empty if these are no experts."""
    for ending, modules in ((_GATE_UP, ("gate_proj", "up_proj")), (_DOWN, ("down_proj",))):
        if name.endswith(ending):
            layer = name.removesuffix(ending)
            return [f"{layer}.experts.{expert}.{module}.weight" for module in modules]
    return []
