"""The weights of one layer as one piece of bytes, and the layer's parameters as views of it.

Each parameter begins at a multiple of 512 bytes, as torch's own tensors on a device do. Kernels are chosen by alignment
too, so a layer computes the same bits wherever its piece lies.
"""

from __future__ import annotations

from torch import Tensor, nn

from tailrace.offload.copies import Copies

_ALIGNMENT = 512


class LayerWeights:
    """Owns the places of a layer's weights: host, device, or both. The parameters always show one of them."""

    def __init__(self, layer: nn.Module) -> None:
        self.parameters = list(layer.parameters())
        self._starts: list[int] = []
        self.num_bytes = 0
        for parameter in self.parameters:
            parameter.requires_grad_(False)
            self._starts.append(self.num_bytes)
            size = parameter.numel() * parameter.element_size()
            self.num_bytes += -(-size // _ALIGNMENT) * _ALIGNMENT
        self.host: Tensor | None = None
        self._resident: Tensor | None = None

    @property
    def is_resident(self) -> bool:
        return self._resident is not None

    def leave(self, copies: Copies) -> None:
        """Give the memory on the device back. The copy on the host is made once and stays."""
        if self.host is None:
            one = copies.is_one_memory and self._resident is not None
            self.host = self._resident if one else self._gathered(copies.host_memory(self.num_bytes))
        self.show_host()
        self._resident = None

    def stay(self, copies: Copies) -> None:
        """Take memory on the device for these weights alone."""
        if self._resident is None:
            one = copies.is_one_memory and self.host is not None
            self._resident = self.host if one else self._gathered(copies.device_memory(self.num_bytes))
            assert self._resident is not None
            self.show(self._resident)

    def show_host(self) -> None:
        assert self.host is not None
        self.show(self.host)

    def show(self, memory: Tensor) -> None:
        """Let the parameters point into this memory."""
        for parameter, view in zip(self.parameters, self._views(memory), strict=True):
            parameter.data = view

    def _gathered(self, memory: Tensor) -> Tensor:
        for parameter, view in zip(self.parameters, self._views(memory), strict=True):
            view.copy_(parameter.data, non_blocking=memory.is_cuda)
        return memory

    def _views(self, memory: Tensor) -> list[Tensor]:
        return [
            memory[start : start + parameter.numel() * parameter.element_size()]
            .view(parameter.dtype)
            .view(parameter.shape)
            for start, parameter in zip(self._starts, self.parameters, strict=True)
        ]
