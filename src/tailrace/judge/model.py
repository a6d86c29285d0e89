"""A model that answers questions about tokens, with some of its layers on the device.

Its answers do not depend, bit for bit, on

* how many layers are resident, and whether copies overlap with computation;
* the other questions of the pass, and their order, unless sequences are packed (``is_packed``).

They do depend on the device, the precision, and which positions are asked for together in one question.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from tailrace.devices.upload import upload
from tailrace.judge.decoder import TOLERANCE, Decoder
from tailrace.judge.packed_attention import is_fast
from tailrace.judge.questions import Question
from tailrace.judge.readings import read_logprobs, read_reward
from tailrace.offload.layer_offload import LayerOffload, offload_layers


class JudgeModel:
    """Owns the network and where its layers lie (``offload``)."""

    def __init__(
        self,
        model: PreTrainedModel,
        device: torch.device,
        *,
        num_resident: int | None = None,
        is_packed: bool = False,
    ) -> None:
        """``num_resident``: layers that stay on the device; None: all. ``is_packed``: compute sequences side by side if
        the device has a kernel for it."""
        self._model, self.device = model.eval(), device
        num_layers = model.config.get_text_config().num_hidden_layers
        self.offload: LayerOffload = offload_layers(
            model, device, num_resident=num_layers if num_resident is None else num_resident
        )
        self.decoder = Decoder(model, is_packed=is_packed and is_fast(model, device))
        self.decoder.check(device)
        self._check_head()

    @property
    def vocab_size(self) -> int:
        return int(self._model.config.get_text_config().vocab_size)

    @property
    def max_length(self) -> int:
        """Most tokens of a sequence, as the model's config says."""
        return int(self._model.config.get_text_config().max_position_embeddings)

    @property
    def has_reward_head(self) -> bool:
        """Whether it gives a number instead of log-probs."""
        return self._model.get_output_embeddings() is None

    @property
    def outside_bytes(self) -> int:
        """Bytes of the weights outside the layers."""
        every = {id(each): each.numel() * each.element_size() for each in self._model.parameters()}
        for layer in self.offload.layers:
            for each in layer.parameters():
                every.pop(id(each), None)
        return sum(every.values())

    def logprobs(self, questions: Sequence[Question]) -> list[NDArray[np.float32]]:
        """P x K log-probs of each question, in one pass over all of them. ``ValueError`` for tokens that do not
        exist."""
        for question in questions:
            question.check(self.vocab_size)
        head = self._model.get_output_embeddings()
        with torch.no_grad():
            states = self.decoder.states([self._upload(question.tokens_L) for question in questions])
            asked = [
                self.decoder.norm(each[:, self._upload(question.positions_P)])[0]
                for each, question in zip(states, questions, strict=True)
            ]
            del states
            candidates = [self._upload(question.candidates_PK) for question in questions]
            return [found.cpu().numpy() for found in read_logprobs(head, asked, candidates)]

    def rewards(self, sequences: Sequence[NDArray[np.int32]]) -> list[float]:
        """The number that the reward head gives to each sequence."""
        head: nn.Linear = self._model.score
        for tokens in sequences:
            Question.about_the_end(tokens, tokens[:1]).check(self.vocab_size)
        with torch.no_grad():
            states = self.decoder.states([self._upload(tokens) for tokens in sequences])
            last = [self.decoder.norm(each[:, -1:])[0, 0] for each in states]
            return [float(read_reward(head, state)) for state in last]

    def _check_head(self) -> None:
        """``ValueError`` if the model does more to its logits than its output embedding does."""
        if self.has_reward_head:
            return
        tokens, every = np.arange(5, dtype=np.int32) % self.vocab_size, np.arange(self.vocab_size, dtype=np.int32)
        [[found]] = self.logprobs([Question.about_the_end(tokens, every)])
        with torch.no_grad():
            logits = self._model(input_ids=self._upload(tokens)[None], use_cache=False, logits_to_keep=1).logits[0, -1]
        expected = logits.float().log_softmax(dim=-1).cpu().numpy()
        if not np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max():
            raise ValueError(f"{type(self._model).__name__} changes its logits, so it cannot be a judge")

    def _upload(self, array: NDArray[np.integer]) -> Tensor:
        return upload(array.astype(np.int64), self.device)


def load_judge_model(
    path: Path,
    device: torch.device,
    *,
    dtype: torch.dtype,
    has_reward_head: bool,
    num_resident: int | None = None,
    is_packed: bool = False,
) -> JudgeModel:
    """Read a model into host memory and bring its resident layers to the device. ``ValueError`` if files lack weights,
    or if the model cannot be a judge."""
    disable_progress_bar()
    kind = AutoModelForSequenceClassification if has_reward_head else AutoModelForCausalLM
    model, loading = kind.from_pretrained(
        path, dtype=dtype, attn_implementation="sdpa", output_loading_info=True, local_files_only=True
    )
    if loading["missing_keys"]:
        raise ValueError(f"{path} holds no weights for {', '.join(sorted(loading['missing_keys']))}")
    if has_reward_head and model.config.num_labels != 1:
        raise ValueError(f"the reward head of {path} must give one number, it gives {model.config.num_labels}")
    return JudgeModel(model, device, num_resident=num_resident, is_packed=is_packed)
