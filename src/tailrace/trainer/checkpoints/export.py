"""A checkpoint as a plain Hugging Face model: no adapter, nothing of the trainer.

The directory appears under its name only when all of it is written.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tailrace.trainer.checkpoints import checkpoint as files
from tailrace.trainer.checkpoints import sharded_checkpoint
from tailrace.trainer.model.model_files import load_model


def find_checkpoint(path: Path) -> Path:
    """A checkpoint itself, or the newest one of a run."""
    newest = path / "checkpoints" / "latest"
    found = newest if newest.exists() else path
    if not (found / files.STATE_FILE).is_file():
        raise ValueError(f"{path} is neither a run with a checkpoint nor a checkpoint")
    return found.resolve()


def export(checkpoint: Path, directory: Path, *, base: Path | None) -> None:
    """``base``: the model that the checkpoint's adapter belongs to; None if it holds all weights itself."""
    if directory.exists() and any(directory.iterdir()):
        raise ValueError(f"{directory} is not empty; name a new directory")
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if sharded_checkpoint.is_sharded(checkpoint):
        _join(checkpoint, base, partial)
    elif base is None:
        for file in (checkpoint / "config.json", *checkpoint.glob("model*")):
            shutil.copyfile(file, partial / file.name)
    else:
        _merge(checkpoint, base, partial)
    files.copy_companions(checkpoint, partial)
    partial.replace(directory)


def _join(checkpoint: Path, base: Path | None, directory: Path) -> None:
    """Put the parts that several ranks wrote together, and merge an adapter into its base."""
    if base is None:
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(checkpoint), dtype=torch.float32)
        sharded_checkpoint.load_weights(checkpoint, files.POLICY, model)
    else:
        from tailrace.trainer.model.lora_adapter import new_adapter  # needs peft

        model = load_model(base, device=torch.device("cpu"))
        adapted = new_adapter(model, checkpoint)
        sharded_checkpoint.load_weights(checkpoint, files.POLICY, model)
        model = adapted.merge_and_unload()
    model.save_pretrained(directory)


def _merge(checkpoint: Path, base: Path, directory: Path) -> None:
    from peft import PeftModel  # a checkpoint without an adapter is exported without peft

    model = load_model(base, device=torch.device("cpu"))
    PeftModel.from_pretrained(model, checkpoint).merge_and_unload().save_pretrained(directory)
