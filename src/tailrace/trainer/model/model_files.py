"""The model that is trained, from its files."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils.logging import disable_progress_bar

from tailrace.store.tensor_file import stored_types
from tailrace.trainer.model import tree_attention

_SMALL = {
    "num_hidden_layers": 1, "max_window_layers": 1, "vocab_size": 64, "pad_token_id": None,
    "intermediate_size": 64, "moe_intermediate_size": 64,
}  # fmt: skip
_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def resolve_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def load_model(path: Path, *, device: torch.device, gradient_checkpointing: bool = False) -> PreTrainedModel:
    """The model in fp32, in evaluation mode. Weights that the directory does not hold are an error, not noise."""
    model = read_model(path, torch.float32, gradient_checkpointing=gradient_checkpointing).to(device)
    tree_attention.teach(model)
    return model


def open_model(path: Path, *, gradient_checkpointing: bool = False) -> PreTrainedModel:
    """Open a model that several ranks will divide. Weights keep the type that they have in the files, and stay there
    until they are used. Mixtures of experts, and files with several types, are read into memory whole."""
    types = stored_types(path)
    [only] = types if len(types) == 1 else ["F32"]
    model = read_model(path, _TYPES.get(only, torch.float32), gradient_checkpointing=gradient_checkpointing)
    if tree_attention.attends_to_all(model.config):
        # Whether it sees trees is found out by comparing logits: in fp32, and without reading all weights.
        small = _small(model.config)
        tree_attention.teach(small)
        model.set_attn_implementation(small.config._attn_implementation)
    return model


def _small(config: PreTrainedConfig) -> PreTrainedModel:
    """A random model of the same kind in fp32, with one layer, a narrow MLP and few tokens."""
    config = deepcopy(config)
    text = config.get_text_config()
    for name, value in _SMALL.items():
        if getattr(text, name, None) is not None:
            setattr(text, name, value)
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:1]
    with torch.random.fork_rng(devices=()):
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32).eval()


def read_model(path: Path, dtype: torch.dtype, *, gradient_checkpointing: bool = False) -> PreTrainedModel:
    """The model on the host, in evaluation mode. It does not see trees yet."""
    disable_progress_bar()
    model, loading = AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, attn_implementation="sdpa", output_loading_info=True, local_files_only=True
    )
    if loading["missing_keys"]:
        raise ValueError(f"{path} holds no weights for {', '.join(sorted(loading['missing_keys']))}")
    # The model's own file is copied into checkpoints; an odd one must not make saving the weights fail.
    model.generation_config = GenerationConfig()
    model.eval()
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        # Layers recompute only in training mode. They alone enter it; what is inside them keeps dropout off.
        for module in model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.training = True
    return model
