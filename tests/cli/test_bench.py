"""`tailrace bench` measures the built-in model. How fast it is is not looked at here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailrace.cli.main import main


@pytest.mark.long
def test_every_figure_is_there_beside_what_the_machine_allows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bench.json"
    assert main(["bench", "tiny-arith", "--quick", "--device", "cpu", "--json", str(path)]) == 0
    printed = capsys.readouterr()
    found = json.loads(path.read_text())
    names = [figure["name"] for figure in found["figures"]]
    assert names == ["decode, batch 1", "decode, batch 8", "prefill", "training", "publish", "pull"]
    for figure in found["figures"]:
        assert figure["measured"] > 0
        assert figure["machine_allows"] > 0  # neighbours may slow down either, so nothing is said about their ratio
    assert found["notes"] == []
    assert printed.out.startswith("tailrace ")
    assert f"torch {found['setting']['torch']}" in printed.out
    assert "machine allows" in printed.out
    assert "training: " in printed.err, "progress goes to stderr"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["./no-such-model"], "there is no such directory"),
        (["--json", "no/such/folder/bench.json"], "there is no folder no/such/folder"),
        (["--device", "nonsense"], "is not a device"),
        (["--fast"], "unexpected argument '--fast'"),
    ],
)
def test_what_cannot_be_measured_is_a_sentence(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    assert sentence in capsys.readouterr().err
