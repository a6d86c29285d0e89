"""Low-rank adapters, as far as settings and files tell: nothing here needs the package peft."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tailrace.config.model_settings import ALL_LINEAR, ModelSettings

if TYPE_CHECKING:
    from tailrace.trainer.model.lora_adapter import Adapter

CONFIG_FILE = "adapter_config.json"


def attach(model: PreTrainedModel, settings: ModelSettings, source: Path) -> Adapter | None:
    """Freeze the model and put an adapter into it, where the settings ask for one."""
    if not settings.lora_rank:
        return None
    from tailrace.trainer.model.lora_adapter import Adapter  # needs peft, which most runs do without

    return Adapter(model, settings, base=_base_name(settings.path, source))


def check(settings: ModelSettings, source: Path) -> None:
    """``ValueError`` if the model cannot have this adapter; found out without loading its weights."""
    if not settings.lora_rank:
        return
    if find_spec("peft") is None:
        raise ValueError(
            f"model.lora_rank is {settings.lora_rank}, but peft is not installed: pip install 'tailrace[lora]'"
        )
    if settings.lora_target_modules == (ALL_LINEAR,):
        return
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source))
    for target in settings.lora_target_modules:
        if problem := _problem(target, skeleton):
            raise ValueError(f"model.lora_target_modules: {problem}")


def base_of(checkpoint: Path) -> str | None:
    """The model that an adapter belongs to; None for a checkpoint that is a model itself."""
    path = checkpoint / CONFIG_FILE
    return json.loads(path.read_text(encoding="utf-8"))["base_model_name_or_path"] if path.is_file() else None


def _base_name(name: str, source: Path) -> str:
    """What finds the model again: a hub id as it is, which means the same on every machine, else its directory."""
    is_hub_id = "/" in name and not Path(name).is_dir()
    return name if is_hub_id else str(source.resolve())


def _problem(target: str, skeleton: PreTrainedModel) -> str | None:
    layers = dict(skeleton.named_modules())
    matching = [layer for name, layer in layers.items() if name == target or name.endswith(f".{target}")]
    if matching and all(isinstance(layer, torch.nn.Linear) for layer in matching):
        is_tied = skeleton.config.get_text_config().tie_word_embeddings
        is_head = any(layer is skeleton.get_output_embeddings() for layer in matching)
        return (
            f"'{target}' shares its weights with the input embedding, so it cannot be adapted"
            if is_head and is_tied
            else None
        )
    known = sorted({name.rpartition(".")[2] for name, layer in layers.items() if isinstance(layer, torch.nn.Linear)})
    what = "is not a linear layer" if matching else "is no layer of this model"
    return (
        f"'{target}' {what}; its linear layers are {', '.join(known)} ('{ALL_LINEAR}', alone, means all but the head)"
    )
