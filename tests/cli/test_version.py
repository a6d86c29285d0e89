"""`tailrace version`."""

from __future__ import annotations

import pytest

from tailrace.cli.main import main


def test_versions_of_everything_that_matters_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("tailrace ")
    assert any(line.startswith("torch ") for line in lines)


def test_an_argument_too_many_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--foo"]) == 2
    assert "--foo" in capsys.readouterr().err
