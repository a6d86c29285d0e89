"""AdamW on the host, for weights on another device: the moments lie in the host's memory and the step is taken there.

Per step, gradients and weights are copied to the host, one parameter after the other, and the new weights are copied
back. While one parameter is computed the next one is on its way. Gradients that wait on the host are read there. No
part of the state is ever on the device. Arithmetic is that of ``torch.optim.AdamW`` in fp32.
Parameters may be divided among ranks: each rank takes the step of its own parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from tailrace.trainer.ranks.ranks import local

HOST = torch.device("cpu")


GradientOf = Callable[[Tensor], Tensor | None]
"""Finds the gradient of a parameter, on any device; None: it has none."""


def _own_gradient(parameter: Tensor) -> Tensor | None:
    return parameter.grad


class HostAdamW(torch.optim.AdamW):
    """AdamW whose state is on the host, whichever device its parameters are on."""

    gradient_of: GradientOf = staticmethod(_own_gradient)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        assert closure is None, "the loss is not computed again"
        for group in self.param_groups:
            for parameter, weight, gradient in _fetched(group["params"], self.gradient_of):
                state = self.state[parameter]
                if not state:
                    state.update(no_moments(parameter, HOST))
                _step(weight, gradient, state, group)
                local(parameter).copy_(weight, non_blocking=True)


def no_moments(parameter: Tensor, device: torch.device) -> dict[str, Tensor]:
    """The state of AdamW before its first step."""
    return {
        "step": torch.zeros((), dtype=torch.float32, device=device),
        "exp_avg": torch.zeros_like(parameter, device=device),
        "exp_avg_sq": torch.zeros_like(parameter, device=device),
    }


def _fetched(parameters: list[Tensor], gradient_of: GradientOf) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Each parameter that has a gradient, with its weight and its gradient on the host. The copy of the next one has
    begun."""
    ahead = None
    for parameter in parameters:
        gradient = gradient_of(parameter)
        if gradient is None:
            continue
        following = (parameter, *_begin_copy(parameter, gradient))
        if ahead is not None:
            yield _arrived(ahead)
        ahead = following
    if ahead is not None:
        yield _arrived(ahead)


def _begin_copy(parameter: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, torch.cuda.Event | None]:
    # A copy that does not block goes to page-locked memory, which torch keeps for the next one.
    weight = local(parameter.detach()).to(HOST, non_blocking=True, copy=True)
    gradient = local(gradient.detach()).to(HOST, non_blocking=True)
    if not parameter.is_cuda:
        return weight, gradient, None
    arrival = torch.cuda.Event()
    arrival.record(torch.cuda.current_stream(parameter.device))
    return weight, gradient, arrival


def _arrived(copied: tuple[Tensor, Tensor, Tensor, torch.cuda.Event | None]) -> tuple[Tensor, Tensor, Tensor]:
    parameter, weight, gradient, arrival = copied
    if arrival is not None:
        arrival.synchronize()
    return parameter, weight, gradient


def _step(weight: Tensor, gradient: Tensor, state: dict[str, Tensor], group: dict[str, Any]) -> None:
    adamw(
        [weight],
        [gradient],
        [local(state["exp_avg"])],
        [local(state["exp_avg_sq"])],
        [],
        [state["step"]],
        fused=True,
        amsgrad=False,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )
