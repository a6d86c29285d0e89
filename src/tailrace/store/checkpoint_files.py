"""Checks whether a checkpoint is undamaged, from its files alone, without loading a model."""

from __future__ import annotations

import json
from pathlib import Path

from tailrace.store.checksums import CHECKSUMS_NAME, changed_files
from tailrace.store.tensor_file import damage as tensor_damage

SHARDS_INDEX = ".metadata"
"""File that says which of the files of several ranks (``*.distcp``) holds what."""
_STATE_KEYS = ("coordinator", "metrics", "journal_size", "metrics_size", "now")


def damage(checkpoint: Path) -> str | None:
    """Return what is wrong with a checkpoint, in a sentence; None if no damage is found."""
    model = "adapter_config.json" if any(checkpoint.glob("adapter_*")) else "config.json"
    for name, keys in (("run_state.json", _STATE_KEYS), ("trainer_state.json", ("version",)), (model, ())):
        if problem := _json_problem(checkpoint / name, keys):
            return problem
    tensors = sorted(checkpoint.glob("*.safetensors"))
    is_sharded = (checkpoint / SHARDS_INDEX).is_file() and any(checkpoint.glob("*.distcp"))
    if not is_sharded and not any(not path.name.startswith("trainer_state") for path in tensors):
        return f"{checkpoint.name} has no weights (*.safetensors, or *.distcp with {SHARDS_INDEX})"
    for path in tensors:
        if problem := tensor_damage(path):
            return f"{checkpoint.name}/{problem}"
    return _changed(checkpoint)


def _json_problem(path: Path, keys: tuple[str, ...]) -> str | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{path.parent.name}/{path.name} is missing"
    except (OSError, ValueError) as error:
        return f"{path.parent.name}/{path.name} cannot be read: {error}"
    missing = [key for key in keys if key not in data]
    return f"{path.parent.name}/{path.name} lacks {', '.join(missing)}" if missing else None


def _changed(checkpoint: Path) -> str | None:
    try:
        name = next(changed_files(checkpoint), None)
    except (OSError, ValueError, TypeError) as error:
        return f"{checkpoint.name}/{CHECKSUMS_NAME} cannot be read: {error}"
    if name is None:
        return None
    is_there = (checkpoint / name).exists()
    return f"{checkpoint.name}/{name} is {'not what was written: its checksum differs' if is_there else 'missing'}"
