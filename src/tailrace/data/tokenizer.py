"""Loads the tokenizer of a model directory, if possible without importing torch.

`AutoTokenizer` of Transformers imports torch and its tables of models, which takes seconds and which the controller
does not need. A tokenizer that `tokenizer.json` describes fully is loaded without `AutoTokenizer`.
Texts can be made with less: `detokenizer` gives a value that other processes use without Transformers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tailrace.data.detokenizer import Detokenizer

_PLAIN_CLASSES = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Class names that Transformers gives to a tokenizer that `tokenizer.json` describes fully."""


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
    """Whether the model needs no tokenizer class of its own."""
    config = model / "tokenizer_config.json"
    if not config.is_file() or not (model / "tokenizer.json").is_file():
        return False
    settings = json.loads(config.read_text(encoding="utf-8"))
    return settings.get("tokenizer_class") in _PLAIN_CLASSES and "auto_map" not in settings


def detokenizer(tokenizer: Any) -> Detokenizer | None:
    """Makes the texts that `tokenizer.decode(..., skip_special_tokens=True)` makes; None if its class adds steps."""
    from transformers import PreTrainedTokenizerFast

    plain, found = PreTrainedTokenizerFast, type(tokenizer)
    if not isinstance(tokenizer, plain) or (found.decode, found._decode) != (plain.decode, plain._decode):
        return None
    if tokenizer.clean_up_tokenization_spaces and not _ignores_clean_up(tokenizer):
        return None
    return Detokenizer(tokenizer=tokenizer.backend_tokenizer.to_str().encode())


def _ignores_clean_up(tokenizer: Any) -> bool:
    """Transformers changes no spaces in the texts of BPE tokenizers, unless it is forced to."""
    is_forced = tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output
    return type(tokenizer.backend_tokenizer.model).__name__ == "BPE" and not is_forced
