from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.data.models import built_in_models, resolve_model


def test_a_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert resolve_model(str(tmp_path)) == tmp_path


def test_a_directory_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json"):
        resolve_model(str(tmp_path))


def test_a_path_that_does_not_exist_is_not_looked_up_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such directory"):
        resolve_model(str(tmp_path / "missing"))


def test_built_in_models_resolve_to_their_files() -> None:
    assert "tiny-arith" in built_in_models()
    assert (resolve_model("tiny-arith") / "config.json").is_file()


def test_without_a_network_an_unknown_model_is_one_clear_sentence(tmp_path: Path) -> None:
    script = "from tailrace.data.models import resolve_model; resolve_model('somebody/some-model')"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path),
    }
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    last = result.stderr.strip().split("\n")[-1]
    assert last.startswith("ValueError: model 'somebody/some-model' is neither built in (")
    assert "Hugging Face" in last
