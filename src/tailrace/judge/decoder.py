"""A Hugging Face decoder, run over several sequences: layer by layer, and in each layer one *pack* after the other.

L tokens, D hidden width.

* Each layer is needed once per pass, however many sequences there are. An offloaded layer is copied once.
* Memory follows the longest pack: for the others only the states between two layers are kept.
* A pack is one sequence, or several that lie side by side without padding (``is_packed``). Alone, a sequence is
  computed in the same shapes whatever is beside it, so what the network says about it does not depend, bit for bit, on
  the other sequences of the pass. Side by side they keep a GPU busier, but the kernel of a matrix product is chosen by
  its size, so their bits depend on one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tailrace.devices.upload import upload
from tailrace.judge.packed_attention import packed_attention
from tailrace.judge.passes import packs
from tailrace.judge.token_tiles import tile_layer
from tailrace.offload.layer_offload import decoder_layers
from tailrace.trainer.model.tree_attention import attends_to_all

TOLERANCE = 0.02
"""Largest difference from the model's own pass, as a share of its largest number. bfloat16 has steps of 0.008."""


@dataclass(slots=True, kw_only=True)
class _Pack:
    """Sequences that are computed together."""

    states: Tensor
    rotation: tuple[Tensor, Tensor]
    lengths: list[int]
    rows: dict[str, Any] = field(default_factory=dict)
    """Where the sequences end, for attention; empty: there is only one."""


class Decoder:
    """Owns no weights: it calls the parts of a model."""

    def __init__(self, model: PreTrainedModel, *, is_packed: bool = False) -> None:
        """``ValueError`` if the model is not a decoder of the kind of Llama, Qwen2 and Qwen3."""
        self.is_packed = is_packed
        base = model.base_model
        kind = type(model).__name__
        if not attends_to_all(model.config):
            raise ValueError(f"{kind} has layers that do not attend to all tokens, so it cannot be a judge")
        if not all(hasattr(base, name) for name in ("rotary_emb", "norm")):
            raise ValueError(f"{kind} is not built like Llama or Qwen, so it cannot be a judge")
        self._model = model
        self._embed, self._rotary, self.norm = base.get_input_embeddings(), base.rotary_emb, base.norm
        self._layers = decoder_layers(model)
        for layer in self._layers:
            tile_layer(layer)

    @property
    def held_bytes(self) -> int:
        """Bytes of one token of a pass between two layers: its state, and its rotation."""
        config = self._model.config.get_text_config()
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return int((config.hidden_size + 2 * head_dim) * self._model.dtype.itemsize)

    def states(self, sequences: Sequence[Tensor]) -> list[Tensor]:
        """The states behind the last layer, before the last norm: 1 x L x D of each sequence. Tokens are on the
        device."""
        groups = packs([len(tokens) for tokens in sequences], is_packed=self.is_packed)
        with torch.no_grad(), packed_attention(self._model):
            held = [self._begin([sequences[number] for number in group]) for group in groups]
            for layer in self._layers:
                for pack in held:
                    pack.states = layer(pack.states, position_embeddings=pack.rotation, **pack.rows)
        return [states for pack in held for states in pack.states.split(pack.lengths, dim=1)]

    def _begin(self, sequences: Sequence[Tensor]) -> _Pack:
        lengths = [len(tokens) for tokens in sequences]
        states = self._embed(torch.cat(list(sequences))[None])
        pack = _Pack(states=states, rotation=self._rotate(states, lengths), lengths=lengths)
        if len(lengths) > 1:
            ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
            pack.rows = {"ends": upload(ends.numpy(), states.device), "longest": max(lengths)}
        return pack

    def run_first_layer(self, states: Tensor) -> Tensor:
        """What the first layer makes of the states of one sequence. To measure it."""
        with torch.no_grad():
            found: Tensor = self._layers[0](states, position_embeddings=self._rotate(states, [states.shape[1]]))
        return found

    def _rotate(self, states: Tensor, lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
        places = torch.cat([torch.arange(length, device=states.device) for length in lengths])[None]
        rotation: tuple[Tensor, Tensor] = self._rotary(states, places)
        return rotation

    def check(self, device: torch.device) -> None:
        """``ValueError`` if the model's own pass gives something else: then it does more than we call."""
        config = self._model.config.get_text_config()
        tokens = torch.arange(5, device=device) % config.vocab_size
        with torch.no_grad():
            expected = self._model.base_model(input_ids=tokens[None], use_cache=False).last_hidden_state
            [states] = self.states([tokens])
            difference = (self.norm(states) - expected).abs().max()
        if not difference <= TOLERANCE * expected.abs().max():
            raise ValueError(f"{type(self._model).__name__} is not built like Llama or Qwen, so it cannot be a judge")
