"""The model that the KL term compares with, if its layers lie in the memory of the host (``offload/``).

Each rank has all of it on its own host, in fp32, and scores its own samples with it: its layers come to the device one
after the other. Embeddings, the last norm and two layers are on the device. On a CPU nothing is copied.

It gives the same bits as a model that is all on the device: the same kernels read the same weights.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from tailrace.config.settings import Settings
from tailrace.offload.layer_offload import decoder_layers, offload_layers
from tailrace.trainer.model import tree_attention
from tailrace.trainer.model.model_files import read_model


def load(path: Path, device: torch.device) -> PreTrainedModel:
    """The starting model, without gradients. Its hooks bring the layers."""
    model = read_model(path, torch.float32).requires_grad_(False)
    offload_layers(model, device, num_resident=0)
    tree_attention.teach(model)
    return model


def check(settings: Settings, source: Path) -> None:
    """``ValueError`` if the model's layers cannot lie on the host; found out without loading its weights."""
    if settings.trainer.reference_device is None:
        return
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source))
    try:
        decoder_layers(skeleton)
    except ValueError as error:
        raise ValueError(f"trainer.reference_device is 'cpu', but {error}; leave it out") from error
