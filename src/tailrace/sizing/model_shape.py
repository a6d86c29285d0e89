"""The sizes of a network, read from ``config.json``: what its memory and its arithmetic follow from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from tailrace.store.model_config import has_experts, not_a_config, read_model_config

_MIXTURE = "qwen3_moe"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder of the Llama kind: attention, a gated MLP and two norms in every layer. Instead of one MLP, a layer may
    have experts, each of them a gated MLP."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    has_tied_embeddings: bool = True
    has_qk_norm: bool = False
    """Queries and keys have norms of their own, as in Qwen3."""
    num_sparse_layers: int = 0
    """Layers with experts."""
    num_experts: int = 0
    """Experts of such a layer."""
    experts_per_token: int = 0
    expert_size: int = 0
    """Inner width of an expert."""

    @classmethod
    def read(cls, checkpoint: Path) -> Self:
        """``ValueError`` if ``config.json`` lacks one of the sizes, or if the model is a mixture of an unknown kind."""
        config = read_model_config(checkpoint)
        if has_experts(config) and config.get("model_type") != _MIXTURE:
            raise ValueError(
                f"the sizes of a mixture of experts are known for '{_MIXTURE}', not for '{config.get('model_type')}'"
            )
        try:
            return cls.of(config)
        except (KeyError, TypeError, ValueError) as error:
            raise not_a_config(checkpoint, f"it lacks {error}") from error

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        num_heads, hidden_size = int(config["num_attention_heads"]), int(config["hidden_size"])
        is_qwen3 = config.get("model_type") in ("qwen3", _MIXTURE)
        return cls(
            vocab_size=int(config["vocab_size"]),
            hidden_size=hidden_size,
            intermediate_size=int(config["intermediate_size"]),
            num_layers=int(config["num_hidden_layers"]),
            num_heads=num_heads,
            num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
            head_dim=int(config.get("head_dim") or (128 if is_qwen3 else hidden_size // num_heads)),
            has_tied_embeddings=bool(config.get("tie_word_embeddings", False)),
            has_qk_norm=is_qwen3,
            **_experts(config),
        )

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def embedding_parameters(self) -> int:
        """Parameters of one embedding; input and output share it if embeddings are tied."""
        return self.vocab_size * self.hidden_size

    @property
    def attention_parameters(self) -> int:
        """Parameters of the matrices of attention in one layer."""
        return self.hidden_size * (2 * self.query_size + 2 * self.kv_size)

    @property
    def layer_parameters(self) -> int:
        """Parameters of the matrices of the largest layer."""
        dense = self._dense_parameters if self.num_sparse_layers < self.num_layers else 0
        return self.attention_parameters + max(dense, self._sparse_parameters(self.num_experts))

    @property
    def outside_parameters(self) -> int:
        """Parameters outside the layers: embeddings and the last norm."""
        return self.embedding_parameters * (1 if self.has_tied_embeddings else 2) + self.hidden_size

    @property
    def num_parameters(self) -> int:
        """All parameters but biases, which are few."""
        norms = self.hidden_size * 2 * self.num_layers
        return self.outside_parameters + self._layers_parameters(self.num_experts) + norms

    @property
    def matrix_parameters(self) -> int:
        """Parameters of all matrices but the input embedding."""
        return self._layers_parameters(self.num_experts) + self.embedding_parameters

    @property
    def matmul_parameters(self) -> int:
        """Parameters that every token is multiplied with: all layers, of experts those chosen, and the output head."""
        return self._layers_parameters(self.experts_per_token) + self.embedding_parameters

    @property
    def mlp_width(self) -> int:
        """Inner width of the widest MLP that a token passes: that of all its experts together, if wider."""
        dense = self.intermediate_size if self.num_sparse_layers < self.num_layers else 0
        return max(dense, self.experts_per_token * self.expert_size)

    @property
    def _dense_parameters(self) -> int:
        return 3 * self.hidden_size * self.intermediate_size

    def _sparse_parameters(self, num_experts: int) -> int:
        """Parameters of the router and of this many experts of one layer."""
        router = self.hidden_size * self.num_experts
        return router + num_experts * 3 * self.hidden_size * self.expert_size

    def _layers_parameters(self, num_experts: int) -> int:
        num_dense = self.num_layers - self.num_sparse_layers
        mlps = num_dense * self._dense_parameters + self.num_sparse_layers * self._sparse_parameters(num_experts)
        return self.num_layers * self.attention_parameters + mlps

    def part_of_layers(self, num_parts: int) -> Self:
        """The shape of one rank's layers, if several ranks divide the heads and the MLP of each."""
        return replace(
            self,
            num_heads=self.num_heads // num_parts,
            num_kv_heads=self.num_kv_heads // num_parts,
            intermediate_size=self.intermediate_size // num_parts,
        )

    def kv_bytes(self, itemsize: int) -> int:
        """Bytes of the KV cache for one token."""
        return 2 * self.num_layers * self.kv_size * itemsize

    def lora_parameters(self, rank: int) -> int:
        """Parameters of an adapter of all linear layers but the head. Experts are not adapted."""
        hidden, inner, query, key = self.hidden_size, self.intermediate_size, self.query_size, self.kv_size
        attention = sum(map(sum, [(hidden, query), (hidden, key), (hidden, key), (query, hidden)]))
        num_dense = self.num_layers - self.num_sparse_layers
        return rank * (self.num_layers * attention + num_dense * 3 * (hidden + inner))


def _experts(config: Mapping[str, Any]) -> dict[str, int]:
    """Sizes of the experts, as Qwen3-MoE names them."""
    if not has_experts(config):
        return {}
    step, dense = int(config.get("decoder_sparse_step") or 1), config.get("mlp_only_layers") or ()
    layers = range(int(config["num_hidden_layers"]))
    return {
        "num_sparse_layers": sum(layer not in dense and (layer + 1) % step == 0 for layer in layers),
        # Transformers 5 writes the second name.
        "num_experts": int(config.get("num_experts") or config["num_local_experts"]),
        "experts_per_token": int(config["num_experts_per_tok"]),
        "expert_size": int(config["moe_intermediate_size"]),
    }
