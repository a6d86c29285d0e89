"""Write a checkpoint as a plain Hugging Face model: `tailrace export RUN DIRECTORY`.

A LoRA adapter is merged into its base model. Exit status: 0 written, 2 not written.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", type=Path, metavar="RUN", help="a run directory (its newest checkpoint), or a checkpoint"
    )
    parser.add_argument("directory", type=Path, metavar="DIRECTORY", help="where to write the model; new, or empty")


def run(options: argparse.Namespace) -> int:
    try:
        _export(options.source, options.directory)
    except ModuleNotFoundError as error:
        extras = {"torch": "torch", "transformers": "torch", "safetensors": "torch", "peft": "lora"}
        if error.name not in extras:
            raise
        print(f"tailrace: export needs {error.name}: pip install 'tailrace[{extras[error.name]}]'", file=sys.stderr)
    except (ValueError, OSError) as error:
        print(f"tailrace: {error}", file=sys.stderr)
    else:
        print(f"model: {options.directory}")
        return 0
    return 2


def _export(source: Path, directory: Path) -> None:
    # Heavy imports wait until the arguments are known to be good.
    from tailrace.data.models import resolve_model
    from tailrace.trainer.checkpoints.export import export, find_checkpoint
    from tailrace.trainer.model import lora

    checkpoint = find_checkpoint(source)
    name = lora.base_of(checkpoint)
    export(checkpoint, directory, base=None if name is None else resolve_model(name))
