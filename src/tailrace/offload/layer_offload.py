"""A Hugging Face decoder of which only some layers stay on the device; the others come through two buffers.

* While a layer computes, the next offloaded one is copied. Buffers are taken once and reused in place.
* A pass gives the same bits with any number of resident layers: the same kernels read the same weights.
* It works below the layers' own calls (hooks), so whoever calls the layers one after the other need not know about it:
  the model itself, or a pass that calls each layer for several sequences before it goes on to the next.
* The weights are read, never changed: there is no gradient. The model's state can be read at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from tailrace.offload.copies import Copies, copies_to
from tailrace.offload.layer_weights import LayerWeights
from tailrace.offload.residency import resident_places
from tailrace.offload.turns import Turns


class LayerOffload:
    """Owns where the weights of each layer lie."""

    def __init__(
        self, layers: Sequence[nn.Module], copies: Copies, *, num_resident: int, is_overlapped: bool = True
    ) -> None:
        """``is_overlapped``: copy layers ahead of their use; False: each when it is needed, to measure the gain."""
        self.layers = tuple(layers)
        self._weights = [LayerWeights(layer) for layer in layers]
        everything = [id(each) for weights in self._weights for each in weights.parameters]
        if len(set(everything)) < len(everything):
            raise ValueError("layers that share weights with one another cannot be offloaded")
        self._copies = copies
        self._is_overlapped = is_overlapped
        self._shown: int | None = None
        """Offloaded layer whose parameters point into a buffer."""
        self._place(num_resident)
        self._hooks = [
            layer.register_forward_pre_hook(partial(self._enter, number)) for number, layer in enumerate(layers)
        ]

    @property
    def num_layers(self) -> int:
        return len(self._weights)

    @property
    def layer_bytes(self) -> int:
        """Bytes of the largest layer, and of a buffer."""
        return max(weights.num_bytes for weights in self._weights)

    def keep(self, num_resident: int, *, is_overlapped: bool | None = None) -> None:
        """Change how many layers stay on the device, between two passes."""
        is_overlapped = self._is_overlapped if is_overlapped is None else is_overlapped
        if (num_resident, is_overlapped) != (self.num_resident, self._is_overlapped):
            self._is_overlapped = is_overlapped
            try:
                self._place(num_resident)
            except torch.OutOfMemoryError:
                self._place(0)  # what the two buffers need is there
                raise

    def copy_first_layer(self) -> None:
        """Copy a layer that is not resident into a buffer, to measure it."""
        self._hide()
        weights = self._weights[0]
        assert weights.host is not None
        self._copies.begin(0, weights.host)
        self._copies.arrived(0, weights.num_bytes)
        self._turns.forget()

    def _place(self, num_resident: int) -> None:
        is_resident = resident_places(self.num_layers, num_resident)
        self._hide()
        for weights, stays in zip(self._weights, is_resident, strict=True):
            if not stays:
                weights.leave(self._copies)  # first, to make room
        self.num_resident = num_resident
        self._turns = Turns(is_resident, is_overlapped=self._is_overlapped)
        self._copies.open_buffers(0 if all(is_resident) else self.layer_bytes)
        for weights, stays in zip(self._weights, is_resident, strict=True):
            if stays:
                weights.stay(self._copies)

    def _enter(self, layer: int, *_: Any) -> None:
        for copy in self._turns.enter(layer):
            host = self._weights[copy.layer].host
            assert host is not None
            self._copies.begin(copy.buffer, host)
        if self._shown == layer:
            return
        self._hide()
        weights = self._weights[layer]
        if not weights.is_resident:
            weights.show(self._copies.arrived(self._turns.buffer_of(layer), weights.num_bytes))
            self._shown = layer

    def _hide(self) -> None:
        """Let the layer that computed last point to the host again: its buffer belongs to others from now on."""
        if self._shown is not None:
            self._weights[self._shown].show_host()
            self._shown = None

    def close(self) -> None:
        """Bring all layers to the device, and go."""
        self._place(self.num_layers)
        for hook in self._hooks:
            hook.remove()


def offload_layers(
    model: PreTrainedModel, device: torch.device, *, num_resident: int, is_overlapped: bool = True
) -> LayerOffload:
    """Bring a model to the device, without layers that are not resident. The model may be on the host until then."""
    layers = decoder_layers(model)
    inside = {id(module) for layer in layers for module in layer.modules()}
    for module in model.modules():
        if id(module) not in inside:
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.to(device)
                parameter.requires_grad_(False)
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.to(device))
    return LayerOffload(layers, copies_to(device), num_resident=num_resident, is_overlapped=is_overlapped)


def decoder_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers of a decoder, first to last: the list of modules that has as many as the config names."""
    wanted = model.config.get_text_config().num_hidden_layers
    found = [
        (name.count("."), list(module))
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == wanted
    ]
    least = min((depth for depth, _ in found), default=0)
    outermost = [layers for depth, layers in found if depth == least]
    if len(outermost) != 1:
        raise ValueError(f"{type(model).__name__} has no list of {wanted} layers that can be offloaded")
    [layers] = outermost
    if any(type(one) is not type(other) for one, other in pairwise(layers)):
        raise ValueError(f"the layers of {type(model).__name__} differ in kind, so they cannot be offloaded")
    return layers
