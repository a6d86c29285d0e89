"""The sizes of a network, read from ``config.json``: what its memory and its arithmetic follow from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from tailrace.store.model_config import not_a_config, read_model_config


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder of the Llama kind: attention, a gated MLP and two norms in every layer."""

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

    @classmethod
    def read(cls, checkpoint: Path) -> Self:
        """``ValueError`` if ``config.json`` lacks one of the sizes."""
        config = read_model_config(checkpoint)
        try:
            return cls.of(config)
        except (KeyError, TypeError, ValueError) as error:
            raise not_a_config(checkpoint, f"it lacks {error}") from error

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        num_heads, hidden_size = int(config["num_attention_heads"]), int(config["hidden_size"])
        is_qwen3 = config.get("model_type") == "qwen3"
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
    def layer_parameters(self) -> int:
        """Parameters of the matrices of one layer."""
        attention = self.hidden_size * (2 * self.query_size + 2 * self.kv_size)
        return attention + 3 * self.hidden_size * self.intermediate_size

    @property
    def num_parameters(self) -> int:
        """All parameters but biases, which are few."""
        norms = self.hidden_size * (2 * self.num_layers + 1)
        embeddings = self.embedding_parameters * (1 if self.has_tied_embeddings else 2)
        return embeddings + self.num_layers * self.layer_parameters + norms

    @property
    def matmul_parameters(self) -> int:
        """Parameters that every token is multiplied with: all layers and the output head."""
        return self.num_layers * self.layer_parameters + self.embedding_parameters

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
        """Parameters of an adapter of all linear layers but the head."""
        hidden, inner, query, key = self.hidden_size, self.intermediate_size, self.query_size, self.kv_size
        ends = [(hidden, query), (hidden, key), (hidden, key), (query, hidden)]
        ends += [(hidden, inner), (hidden, inner), (inner, hidden)]
        return self.num_layers * rank * sum(before + after for before, after in ends)
