"""Learning with a critic: generalised advantage estimation and the critic's loss.

B sequences, T response positions. Only loss tokens are states: what the environment wrote in between (masked) is part
of the next state. The score is paid at the last loss token and the episode ends there.

    delta_t = reward_t + gamma * V_(t+1) - V_t
    A_t     = delta_t + gamma * lam * A_(t+1)
    R_t     = A_t + V_t                             what the critic learns to predict
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    advantages_BT: Tensor
    returns_BT: Tensor


def gae(scores_B: Tensor, values_BT: Tensor, mask_BT: Tensor, *, gamma: float, lam: float) -> Judgement:
    """Advantages and returns in fp64, without gradient, zero at masked tokens."""
    # A sum of thousands of differences: in fp32 equal returns would come out different.
    values_BT = torch.where(mask_BT, values_BT.detach().double(), 0.0)
    reward_B = scores_B.double()
    advantage_B, next_value_B = torch.zeros_like(reward_B), torch.zeros_like(reward_B)
    columns: list[Tensor] = []
    for is_state_B, value_B in zip(reversed(mask_BT.unbind(1)), reversed(values_BT.unbind(1)), strict=True):
        delta_B = reward_B + gamma * next_value_B - value_B
        advantage_B = torch.where(is_state_B, delta_B + gamma * lam * advantage_B, advantage_B)
        next_value_B = torch.where(is_state_B, value_B, next_value_B)
        reward_B = torch.where(is_state_B, 0.0, reward_B)
        columns.append(advantage_B)
    advantages_BT = torch.where(mask_BT, torch.stack(columns[::-1], dim=1), 0.0)
    return Judgement(advantages_BT=advantages_BT, returns_BT=advantages_BT + values_BT)


def value_loss(values_BT: Tensor, returns_BT: Tensor) -> Tensor:
    """Half the squared error of each token. PPO's clip around the old values is left out: a batch is trained in one
    optimizer step, so the old values are the current ones and the clip would change nothing."""
    return 0.5 * (values_BT - returns_BT) ** 2
