"""A low-rank adapter inside the trained model, by PEFT.

* Only the adapter learns; the weights of the starting model stay as they were loaded, bit for bit.
* The adapted weights, ``W + scale * B @ A``, are computed into copies, one layer at a time.
* With the adapter off the model is the starting model: a KL term needs no second copy of it.
* There is no dropout: a forward pass stays a function of its input, and the engine's log-probs stay comparable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from peft.utils import SAFETENSORS_WEIGHTS_NAME
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from tailrace.config.model_settings import ALL_LINEAR, ModelSettings

_NAME = "default"


def new_adapter(model: PreTrainedModel, directory: Path) -> PeftModel:
    """Put an adapter into the model as ``adapter_config.json`` describes it. Its weights are not loaded."""
    config = LoraConfig.from_pretrained(directory)
    config.inference_mode = False  # only weights that can learn are in a checkpoint of several ranks
    return get_peft_model(model, config, adapter_name=_NAME)


class Adapter:
    """Owns the adapter of one model, whose layers it replaces in place."""

    def __init__(self, model: PreTrainedModel, settings: ModelSettings, *, base: str) -> None:
        targets = settings.lora_target_modules
        config = LoraConfig(
            r=settings.lora_rank,
            lora_alpha=settings.lora_alpha,
            target_modules=ALL_LINEAR if targets == (ALL_LINEAR,) else list(targets),
            task_type=TaskType.CAUSAL_LM,
        )
        self._peft = get_peft_model(model, config, adapter_name=_NAME)
        self._layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}
        for layer in self._layers.values():
            _draw(layer.lora_A[_NAME].weight)
        config.base_model_name_or_path = base
        # PEFT keeps a set, whose order would differ from one checkpoint to the next.
        config.target_modules = sorted(config.target_modules)
        self._config = config

    @contextmanager
    def off(self) -> Iterator[None]:
        """Inside it the model is the starting model."""
        # Not the model's own disable_adapter: that one inspects every parameter, each time.
        self._peft.base_model.disable_adapter_layers()
        try:
            yield
        finally:
            self._peft.base_model.enable_adapter_layers()

    def merged(
        self, weights: Mapping[str, Tensor], whole: Callable[[Tensor], Tensor] | None = lambda tensor: tensor
    ) -> Iterator[tuple[str, Tensor]]:
        """The model's own tensors as those of the adapted model, under the names of the starting model.

        ``weights``: all tensors of the model, those of the adapter among them. Nothing else of the model is read, so
        the model may compute meanwhile. ``whole`` makes a whole tensor of one that is divided among ranks. None: only
        names and shapes are right."""
        for name, tensor in weights.items():
            layer, is_adapted, kind = name.rpartition(".base_layer.")
            if is_adapted:
                is_changed = kind == "weight" and whole is not None
                yield f"{layer}.{kind}", self._merge(layer, weights, whole) if is_changed and whole else tensor
            elif ".lora_" not in name:
                yield name, tensor

    def save(self, directory: Path) -> None:
        state = get_peft_model_state_dict(self._peft, adapter_name=_NAME, save_embedding_layers=False)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        save_file(tensors, directory / SAFETENSORS_WEIGHTS_NAME, metadata={"format": "pt"})
        self.save_config(directory)

    def save_config(self, directory: Path) -> None:
        """Write ``adapter_config.json``: the base model, the adapted layers and the scale."""
        self._config.save_pretrained(directory)

    def load(self, directory: Path) -> None:
        stored = load_file(directory / SAFETENSORS_WEIGHTS_NAME)
        if stored.keys() != get_peft_model_state_dict(self._peft, save_embedding_layers=False).keys():
            raise ValueError(f"{directory} holds an adapter for other layers")
        set_peft_model_state_dict(self._peft, stored, adapter_name=_NAME)

    def _merge(self, layer: str, weights: Mapping[str, Tensor], whole: Callable[[Tensor], Tensor]) -> Tensor:
        up, down = (whole(weights[f"{layer}.{part}.{_NAME}.weight"]) for part in ("lora_B", "lora_A"))
        return whole(weights[f"{layer}.base_layer.weight"]) + (up @ down) * self._layers[layer].scaling[_NAME]


def _draw(weight: Tensor) -> None:
    """Draw the start values of an adapter as PEFT does. PEFT itself rounds them to the precision of the weights below,
    and so several ranks, which hold those as the files do, would begin with other values than one."""
    with torch.no_grad():
        weight.copy_(torch.nn.init.kaiming_uniform_(torch.empty(weight.shape), a=math.sqrt(5)))
