"""AdamW over one model: gradients of unnormalised sums come in, an averaged, clipped step goes out."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_

from tailrace.config.settings import TrainerSettings
from tailrace.trainer.host_optimizer import HOST, HostAdamW, no_moments


def adamw(model: torch.nn.Module, settings: TrainerSettings, *, learning_rate: float) -> torch.optim.AdamW:
    """Matrices decay; norms and biases do not."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kind = HostAdamW if settings.optimizer_device == "cpu" else torch.optim.AdamW
    optimizer = kind(
        [
            {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": settings.weight_decay},
            {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=learning_rate,
        betas=settings.betas,
        fused=True,
    )
    if any(parameter.is_cuda for parameter in trainable):
        allocate_moments(optimizer)
    return optimizer


def device_of_moments(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> torch.device:
    return HOST if isinstance(optimizer, HostAdamW) else parameter.device


def allocate_moments(optimizer: torch.optim.AdamW) -> None:
    """Now, not in the first step as torch does: there they would lie among freed activations, and a block of device
    memory that holds one of them can never be given back to rollout."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            optimizer.state[parameter] = no_moments(parameter, device_of_moments(optimizer, parameter))


def average_and_clip(model: torch.nn.Module, *, denominator: float, max_grad_norm: float) -> float:
    """Divide the accumulated gradients once and clip them; returns their norm before clipping, 0 without any."""
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    if not parameters or not denominator:
        return 0.0
    torch._foreach_mul_([parameter.grad for parameter in parameters], 1.0 / denominator)
    norm = clip_grad_norm_(parameters, max_grad_norm)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def step(optimizer: torch.optim.Optimizer, settings: TrainerSettings, *, learning_rate: float) -> None:
    for group, weight_decay in zip(optimizer.param_groups, (settings.weight_decay, 0.0), strict=True):
        group |= {"lr": learning_rate, "betas": settings.betas, "weight_decay": weight_decay}
    optimizer.step()
