"""Is a checkpoint whole? Found out from its files alone, without loading a model."""

from __future__ import annotations

import json
import struct
from pathlib import Path

_STATE_KEYS = ("coordinator", "metrics", "journal_size", "metrics_size", "now")
_LONGEST_HEADER = 100_000_000


def damage(checkpoint: Path) -> str | None:
    """What is wrong with it, in a sentence; None if nothing can be seen."""
    model = "adapter_config.json" if any(checkpoint.glob("adapter_*")) else "config.json"
    for name, keys in (("run_state.json", _STATE_KEYS), ("trainer_state.json", ("version",)), (model, ())):
        if problem := _json_problem(checkpoint / name, keys):
            return problem
    tensors = sorted(checkpoint.glob("*.safetensors"))
    if not any(not path.name.startswith("trainer_state") for path in tensors):
        return f"{checkpoint.name} has no weights (*.safetensors)"
    return next((problem for path in tensors if (problem := _tensor_problem(path))), None)


def _json_problem(path: Path, keys: tuple[str, ...]) -> str | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{path.parent.name}/{path.name} is missing"
    except (OSError, ValueError) as error:
        return f"{path.parent.name}/{path.name} cannot be read: {error}"
    missing = [key for key in keys if key not in data]
    return f"{path.parent.name}/{path.name} lacks {', '.join(missing)}" if missing else None


def _tensor_problem(path: Path) -> str | None:
    """A safetensors file says in its header where its last tensor ends: any other size is damage."""
    name, size = f"{path.parent.name}/{path.name}", path.stat().st_size
    try:
        with path.open("rb") as file:
            (header_bytes,) = struct.unpack("<Q", file.read(8))
            if header_bytes > min(size, _LONGEST_HEADER):
                return f"{name} does not begin like a safetensors file"
            header = json.loads(file.read(header_bytes))
        ends = [entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        return f"{name} has a damaged header: {error}"
    expected = 8 + header_bytes + max(ends, default=0)
    return None if size == expected else f"{name} has {size:,} bytes, its header promises {expected:,}"
