"""The critic of ``gae``: the starting model with a scalar head, trained beside the policy.

B sequences, T response positions, N response tokens, D hidden width.

The value at a response token is that of the state before it: the same hidden state that predicts the token. The head
starts at zero, so the first advantages are the scores themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from tailrace.algorithms import aggregation
from tailrace.algorithms.values import gae, value_loss
from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.trainer.model import tree_attention
from tailrace.trainer.model.collate import MicroBatch
from tailrace.trainer.model.tree_attention import TreeInput, take
from tailrace.trainer.optimizer import optimizer
from tailrace.trainer.optimizer.gradients import gradients_of
from tailrace.trainer.ranks.ranks import ALONE, Ranks
from tailrace.trainer.step.objective import total


class ValueModel(nn.Module):
    """A language model's body with one output."""

    def __init__(self, model: PreTrainedModel, ranks: Ranks = ALONE) -> None:
        super().__init__()
        self._ranks = ranks
        self.body = model.base_model
        width = model.config.get_text_config().hidden_size
        self.head = nn.Linear(width, 1, bias=False, device=next(model.parameters()).device)
        nn.init.zeros_(self.head.weight)

    def forward(self, tree: TreeInput, source_N: Tensor) -> Tensor:
        hidden_ND = take(tree_attention.run(self.body, tree, "last_hidden_state"), source_N)
        values_N: Tensor = self._ranks.by_tokens(self._value, hidden_ND)
        return values_N

    def _value(self, hidden_ND: Tensor) -> Tensor:
        # In full precision also where the body runs in bf16: advantages are differences of values.
        # Several ranks gather the head in bf16.
        dtype = torch.promote_types(self.head.weight.dtype, torch.float32)
        with torch.autocast(hidden_ND.device.type, enabled=False):
            return functional.linear(hidden_ND.to(dtype), self.head.weight.to(dtype)).squeeze(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Criticism:
    advantages_BT: Tensor
    loss: Tensor
    """Unnormalised, like the policy's; shares its denominator."""
    sums: dict[str, Tensor]


class Critic:
    """Owns the value model, its gradients and its optimizer."""

    def __init__(
        self,
        body: PreTrainedModel,
        *,
        settings: TrainerSettings,
        algorithm: AlgorithmSettings,
        autocast: torch.dtype | None,
        ranks: Ranks = ALONE,
    ) -> None:
        """``body``: the starting model, which the critic changes."""
        self.model = ValueModel(body, ranks)
        self._run = ranks.shard(self.model, autocast)
        if settings.torch_compile:
            tree_attention.compile_layers(self.model)
        self.gradients = gradients_of(self.model, settings, ranks)
        self.optimizer = optimizer.adamw(
            self.model, settings, learning_rate=algorithm.critic_learning_rate, gradients=self.gradients
        )
        self._algorithm, self._autocast = algorithm, autocast
        self._device = self.model.head.weight.device

    def values(self, micro: MicroBatch) -> Tensor:
        with torch.autocast(self._device.type, dtype=self._autocast, enabled=self._autocast is not None):
            return micro.spread(self._run(self.model, micro.tree, micro.source_N))

    def criticize(self, micro: MicroBatch) -> Criticism:
        """Advantages of a micro-batch and the loss of the values they came from."""
        values_BT, mask_BT = self.values(micro), micro.mask_BT
        scores_B = torch.tensor([sample.score for sample in micro.samples], dtype=torch.float64, device=self._device)
        judged = gae(scores_B, values_BT, mask_BT, gamma=self._algorithm.gamma, lam=self._algorithm.lam)
        loss_BT = value_loss(values_BT, judged.returns_BT.to(values_BT.dtype))
        loss = aggregation.loss_sum(loss_BT, mask_BT, self._algorithm.loss_agg_mode)
        error_BT = judged.returns_BT - values_BT.detach()
        sums = {
            "vf_loss": loss.detach(),
            "value": total(values_BT.detach(), mask_BT),
            "return": total(judged.returns_BT, mask_BT),
            "return_squared": total(judged.returns_BT**2, mask_BT),
            "value_error": total(error_BT, mask_BT),
            "value_error_squared": total(error_BT**2, mask_BT),
        }
        return Criticism(advantages_BT=judged.advantages_BT, loss=loss, sums=sums)


def metrics(sums: dict[str, float], *, tokens: float, denominator: float) -> dict[str, float]:
    """What the sums of a whole batch say about the critic."""
    variance = sums["return_squared"] / tokens - (sums["return"] / tokens) ** 2
    unexplained = sums["value_error_squared"] / tokens - (sums["value_error"] / tokens) ** 2
    found = {
        "critic/vf_loss": sums["vf_loss"] / denominator,
        "critic/values/mean": sums["value"] / tokens,
        "critic/returns/mean": sums["return"] / tokens,
    }
    # Equal returns have no variance but for rounding.
    if variance > 1e-9 * sums["return_squared"] / tokens:
        found["critic/vf_explained_var"] = 1.0 - unexplained / variance
    return found
