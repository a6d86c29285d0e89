"""The tokenizer of a model directory, by the shortest way to it.

Transformers' own door, `AutoTokenizer`, imports torch and every table of models first: seconds, in a process that
needs neither. A directory whose tokenizer is nothing but its `tokenizer.json` says so, and is read without them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_PLAIN_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Transformers' names, old and new, for a tokenizer that is its `tokenizer.json`."""


def load_tokenizer(model: Path) -> Any:
    try:
        return _load(model)
    except ImportError:
        raise
    except Exception as error:  # a damaged file makes it raise nearly anything, also a bare Exception
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"the tokenizer of {model} cannot be loaded ({reason}); put the tokenizer's own files there"
        ) from error


def _load(model: Path) -> Any:
    # Imported here: also the short way takes a second, and settings should be refused before that.
    if is_plain(model):
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast.from_pretrained(model)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


def is_plain(model: Path) -> bool:
    """Whether the model's own files ask for no tokenizer class of their own."""
    config = model / "tokenizer_config.json"
    if not config.is_file() or not (model / "tokenizer.json").is_file():
        return False
    settings = json.loads(config.read_text(encoding="utf-8"))
    return settings.get("tokenizer_class") in _PLAIN_CLASSES and "auto_map" not in settings
