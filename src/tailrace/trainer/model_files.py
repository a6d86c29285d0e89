"""The model that is trained, from its files."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils.logging import disable_progress_bar

from tailrace.store.tensor_file import stored_types
from tailrace.trainer import tree_attention

_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def resolve_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


def load_model(path: Path, *, device: torch.device, gradient_checkpointing: bool = False) -> PreTrainedModel:
    """The model in fp32, in evaluation mode. Weights that the directory does not hold are an error, not noise."""
    return _load(path, torch.float32, gradient_checkpointing=gradient_checkpointing).to(device)


def open_model(path: Path, *, gradient_checkpointing: bool = False) -> PreTrainedModel:
    """The same for ranks that are going to divide it: weights are as the files have them, and are read from there when
    they are used. So no rank needs memory for all of them, whatever the size of the model."""
    types = stored_types(path)
    [only] = types if len(types) == 1 else ["F32"]
    return _load(path, _TYPES.get(only, torch.float32), gradient_checkpointing=gradient_checkpointing)


def _load(path: Path, dtype: torch.dtype, *, gradient_checkpointing: bool) -> PreTrainedModel:
    disable_progress_bar()
    model, loading = AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, attn_implementation="sdpa", output_loading_info=True, local_files_only=True
    )
    if loading["missing_keys"]:
        raise ValueError(f"{path} holds no weights for {', '.join(sorted(loading['missing_keys']))}")
    # The model's own file is copied into checkpoints; an odd one must not make saving the weights fail.
    model.generation_config = GenerationConfig()
    model.eval()
    tree_attention.teach(model)
    if gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        # Layers recompute only in training mode. They alone enter it; what is inside them keeps dropout off.
        for module in model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.training = True
    return model
