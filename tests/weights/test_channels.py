"""The suite of weight channels, for each kind that needs no device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.register_assert_rewrite("weights.channel_suite", "weights.slot_suite")

from weights.channel_kinds import SlotKind, make_kind  # noqa: E402
from weights.channel_suite import *  # noqa: E402, F403
from weights.slot_suite import *  # noqa: E402, F403

STRESS = Path(__file__).parents[2] / "benchmarks" / "weights.py"


@pytest.fixture(params=["shared memory", "device memory in files"])
def kind(request: pytest.FixtureRequest) -> SlotKind:
    return make_kind(request.param)


@pytest.mark.long
def test_real_processes_that_push_pull_and_are_killed_never_see_a_torn_version(tmp_path: Path) -> None:
    """A short slice of `make bench-weights`."""
    out = tmp_path / "weights.json"
    options = ["--seconds", "1", "--kills", "6", "--json", str(out)]
    subprocess.run([sys.executable, str(STRESS), *options], check=True, capture_output=True)
    found = json.loads(out.read_text())
    assert found["pusher killed"]["half_way"] > 0, "no push was killed in its middle, so the test shows nothing"
    assert found["pusher killed"]["old_version_not_readable"] == 0
    for stage in ("pushes, pulled", "pusher killed", "puller killed"):
        assert found[stage]["pulls"] > 0
        assert (found[stage]["torn"], found[stage]["refused"], found[stage]["went_back"]) == (0, 0, 0)
    assert found["pushes, pulled"]["pushes"] > 0
    assert found["puller killed"]["pushes"] > 0, "a dead reader held up the writer"
