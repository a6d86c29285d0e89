"""`tailrace profile` on CUDA."""

from __future__ import annotations

import json
from pathlib import Path

from tailrace.cli.main import main


def test_an_engine_on_cuda_is_measured(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    settings = ["--device", "cuda", "--max_running", "8", "--max_response_length", "128", "--repeats", "1"]
    assert main(["profile", "tiny-arith", *settings, "--json", str(path)]) == 0
    found = json.loads(path.read_text())
    assert found["setting"]["device"] != "cpu"
    assert found["num_held_out"] >= 3
