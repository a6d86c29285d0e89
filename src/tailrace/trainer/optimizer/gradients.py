"""Where the gradients of a model are between the pieces of a step: on the device, or in the memory of the host.

On the host they wait in page-locked memory (on a CPU in plain memory), which is taken once, at the end of the first
piece. While a piece is computed they are on the device, where the backward pass adds to them. So the sums are those
without this, in the same order and bit for bit, however many pieces a step has.

An optimizer on the host reads them where they wait. For one on the device they are brought back.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tailrace.config.trainer_settings import TrainerSettings
from tailrace.offload.page_locked import PageLockedMemory
from tailrace.trainer.ranks.ranks import Ranks, local

_ALIGNMENT = 64


class Gradients:
    """Gradients that stay on the device of their parameters until the step is over."""

    def __init__(self, model: nn.Module) -> None:
        self.learning = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def begin_piece(self) -> None:
        """Bring them to where a backward pass adds to them. A second call does nothing."""

    def end_piece(self) -> None:
        """Bring them to where they wait."""

    def begin_step(self) -> None:
        """Bring them to where the optimizer reads them."""

    def forget(self) -> None:
        for parameter in self.learning:
            parameter.grad = None

    def of(self, parameter: Tensor) -> Tensor | None:
        """The gradient, divided among ranks as the parameter is; None: it has none."""
        return parameter.grad

    def zeros(self, parameter: Tensor) -> Tensor:
        """Give a parameter without a gradient one of zeros."""
        parameter.grad = torch.zeros_like(parameter)
        return parameter.grad


class HostGradients(Gradients):
    """Gradients that wait on the host. Owns the memory."""

    def __init__(self, model: nn.Module, ranks: Ranks, *, steps_on_host: bool) -> None:
        """``steps_on_host``: whether the optimizer reads them there."""
        super().__init__(model)
        self._ranks, self._steps_on_host = ranks, steps_on_host
        self._device = next(model.parameters()).device
        self._page_locked = PageLockedMemory(self._device) if self._device.type == "cuda" else None
        self._places: dict[Tensor, Tensor] = {}
        """Memory for the gradient of each parameter, of this rank's part."""
        self._waiting: dict[Tensor, None] = {}
        """Parameters whose gradients are there now."""

    def begin_piece(self) -> None:
        for parameter in self._waiting:
            parameter.grad = torch.empty_like(parameter)
            local(parameter.grad).copy_(self._places[parameter], non_blocking=True)
        self._waiting.clear()

    def end_piece(self) -> None:
        found = [parameter for parameter in self.learning if parameter.grad is not None]
        if found and not self._places:
            self._take_memory()
        for parameter in found:
            assert parameter.grad is not None
            self._places[parameter].copy_(local(parameter.grad), non_blocking=True)
        if self._page_locked is not None and found:
            torch.cuda.synchronize(self._device)  # before others get the memory that is read here
        for parameter in found:
            parameter.grad = None
        self._waiting.update(dict.fromkeys(found))

    def begin_step(self) -> None:
        if not self._steps_on_host:
            self.begin_piece()

    def forget(self) -> None:
        super().forget()
        self._waiting.clear()

    def of(self, parameter: Tensor) -> Tensor | None:
        if parameter in self._waiting:
            return self._ranks.divided_on_host(parameter, self._places[parameter])
        return parameter.grad

    def zeros(self, parameter: Tensor) -> Tensor:
        if not self._steps_on_host:
            return super().zeros(parameter)
        if not self._places:
            self._take_memory()
        self._places[parameter].zero_()
        self._waiting[parameter] = None
        return self._ranks.divided_on_host(parameter, self._places[parameter])

    def _take_memory(self) -> None:
        """One piece of memory for all gradients: to lock pages takes long, and two tensors may share a page."""
        parts = [local(parameter.detach()) for parameter in self.learning]
        sizes = [-(-part.numel() * part.element_size() // _ALIGNMENT) * _ALIGNMENT for part in parts]
        num_bytes = max(_ALIGNMENT, sum(sizes))
        memory = (
            torch.empty(num_bytes, dtype=torch.uint8)
            if self._page_locked is None
            else self._page_locked.take(num_bytes)
        )
        start = 0
        for parameter, part, size in zip(self.learning, parts, sizes, strict=True):
            mine = memory[start : start + part.numel() * part.element_size()]
            self._places[parameter] = mine.view(part.dtype).view(part.shape)
            start += size


def gradients_of(model: nn.Module, settings: TrainerSettings, ranks: Ranks) -> Gradients:
    """``model``: as its ranks have divided it."""
    if settings.gradients_device is None:
        return Gradients(model)
    return HostGradients(model, ranks, steps_on_host=settings.optimizer_device == "cpu")
