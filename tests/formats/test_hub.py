"""`hf:` goes through Hugging Face datasets, in a process of its own so that its cache is the test's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("datasets")


READ = """
import sys
from tailrace.data.rows import read_rows
for path in sys.argv[1:]:
    print([row for _, row in read_rows(path)], flush=True)
"""


def read(*paths: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Read them one after the other. The rows of each are a line of stdout; stderr ends with the first error."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(home),
    }
    return subprocess.run([sys.executable, "-c", READ, *paths], env=environment, capture_output=True, text=True)


def test_a_repository_of_data_files_is_read_by_split(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    for split in ("train", "test"):
        (repository / f"{split}.jsonl").write_text(json.dumps({"question": split, "answer": "1"}) + "\n")
    result = read(*(f"hf:{repository}{suffix}" for suffix in ("", ":test", ":dev")), home=tmp_path / "home")
    rows = [str([{"question": split, "answer": "1"}]) for split in ("train", "test")]
    assert result.stdout.splitlines() == rows, result.stderr
    assert result.stderr.strip().split("\n")[-1].endswith("has no split 'dev'; there are train, test")


def test_a_dataset_that_cannot_be_had_is_one_sentence(tmp_path: Path) -> None:
    last = read("hf:somebody/some-data:test", home=tmp_path).stderr.strip().split("\n")[-1]
    assert last.startswith("ValueError: dataset 'somebody/some-data:test' cannot be downloaded from Hugging Face: ")
