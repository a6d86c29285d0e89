"""A Hugging Face decoder, run over several sequences: layer by layer, and in each layer one sequence after the other.

L tokens, D hidden width.

* What the network says about a sequence does not depend, bit for bit, on the other sequences of the pass: each is
  computed alone, without padding, and so in the same shapes whatever is beside it.
* Each layer is needed once per pass, however many sequences there are. An offloaded layer is copied once.
* Memory follows the longest sequence: for the others only the states between two layers are kept.

Several short sequences in one matrix product would keep a GPU busier. But the kernel of a product is chosen by its
size, so their bits would depend on one another.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tailrace.judge.token_tiles import tile_layer
from tailrace.offload.layer_offload import decoder_layers
from tailrace.trainer.model.tree_attention import attends_to_all

TOLERANCE = 0.02
"""Largest difference from the model's own pass, as a share of its largest number. bfloat16 has steps of 0.008."""


class Decoder:
    """Owns no weights: it calls the parts of a model."""

    def __init__(self, model: PreTrainedModel) -> None:
        """``ValueError`` if the model is not a decoder of the kind of Llama, Qwen2 and Qwen3."""
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
        with torch.no_grad():
            states = [self._embed(tokens[None]) for tokens in sequences]
            rotations = [self._rotate(each) for each in states]
            for layer in self._layers:
                for number, rotation in enumerate(rotations):
                    states[number] = layer(states[number], position_embeddings=rotation)
        return states

    def run_first_layer(self, states: Tensor) -> Tensor:
        """What the first layer makes of the states of one sequence. To measure it."""
        with torch.no_grad():
            found: Tensor = self._layers[0](states, position_embeddings=self._rotate(states))
        return found

    def _rotate(self, states: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(states.shape[1], device=states.device)[None]
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
