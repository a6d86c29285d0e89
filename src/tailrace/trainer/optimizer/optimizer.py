"""AdamW over one model: gradients of unnormalised sums come in, an averaged, clipped step goes out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch.distributed.tensor import DTensor
from torch.nn.utils import get_total_norm

from tailrace.config.trainer_settings import TrainerSettings
from tailrace.trainer.optimizer.gradients import Gradients
from tailrace.trainer.optimizer.host_optimizer import HOST, HostAdamW, no_moments
from tailrace.trainer.ranks.ranks import local

T = TypeVar("T", bound=torch.Tensor)


def adamw(
    model: torch.nn.Module, settings: TrainerSettings, *, learning_rate: float, gradients: Gradients | None = None
) -> torch.optim.AdamW:
    """Matrices decay; norms and biases do not. ``gradients``: None: they are where torch has them."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kind = HostAdamW if settings.optimizer_device == "cpu" else torch.optim.AdamW
    optimizer = kind(
        [
            {"params": parameters, "decays": decays, "weight_decay": settings.weight_decay if decays else 0.0}
            for decays in (True, False)
            for parameters in _by_mesh([p for p in trainable if (p.dim() >= 2) == decays])
        ],
        lr=learning_rate,
        betas=settings.betas,
        fused=True,
    )
    if any(parameter.is_cuda for parameter in trainable):
        allocate_moments(optimizer)
    if isinstance(optimizer, HostAdamW) and gradients is not None:
        optimizer.gradient_of = gradients.of
    return optimizer


def device_of_moments(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> torch.device:
    return HOST if isinstance(optimizer, HostAdamW) else parameter.device


def allocate_moments(optimizer: torch.optim.AdamW) -> None:
    """Now, not in the first step as torch does: there they would lie among freed activations, and a block of device
    memory that holds one of them can never be given back to rollout."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = no_moments(parameter, device_of_moments(optimizer, parameter))


def average_and_clip(given: Gradients, *, denominator: float, max_grad_norm: float) -> float:
    """Divide the accumulated gradients once and clip them; returns their norm before clipping, 0 without any."""
    gradients = [gradient for parameter in given.learning if (gradient := given.of(parameter)) is not None]
    if not gradients or not denominator:
        return 0.0
    mine = [local(gradient) for gradient in gradients]
    torch._foreach_mul_(mine, 1.0 / denominator)
    norm = _norm(gradients)
    torch._foreach_mul_(mine, float((max_grad_norm / (norm + 1e-6)).clamp(max=1.0)))
    return float(norm)


def _norm(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """The norm of all gradients together; of divided ones, of all their parts."""
    norms = [get_total_norm(group) for group in _by_mesh(gradients)]
    norms = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    return norms[0] if len(norms) == 1 else get_total_norm(norms)


def _by_mesh(tensors: Sequence[T]) -> list[list[T]]:
    """Tensors that the same ranks divide among themselves in the same table, in one list: torch computes those at once.
    If there is none, one empty list."""
    found: dict[object, list[T]] = {}
    for tensor in tensors:
        found.setdefault(tensor.device_mesh if isinstance(tensor, DTensor) else None, []).append(tensor)
    return list(found.values()) or [[]]


def step(optimizer: torch.optim.Optimizer, settings: TrainerSettings, *, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        weight_decay = settings.weight_decay if group["decays"] else 0.0
        group |= {"lr": learning_rate, "betas": settings.betas, "weight_decay": weight_decay}
    optimizer.step()
