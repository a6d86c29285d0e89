"""Every sink with its real package: what was written is read back from what the package stores."""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.observe.metrics.rows import Row
from tailrace.observe.sinks import Sinks, open_sinks
from tailrace.observe.sinks.sink import Experiment

ROWS = (
    {"step": 0, "eval/heldout/avg@1": 0.5},
    {"step": 1, "reward/mean": 0.25},
    {"step": 1, "eval/heldout/avg@1": 0.75},
    {"step": 2, "reward/mean": 0.5},
)
SCRIPT = """
import json, sys
from pathlib import Path
from tailrace.observe.sinks import open_sinks
from tailrace.observe.sinks.sink import Experiment
name, directory, *parts = sys.argv[1:]
def fail(part, error):
    raise error
for part in parts:
    experiment = Experiment(directory=Path(directory), project="river", name="first", config={"seed": 3})
    sink = open_sinks([name], experiment, fail)
    for row in json.loads(part):
        sink.write(row)
    sink.close()
"""


def run_sink(name: str, directory: Path, *, environment: dict[str, str]) -> None:
    """In a process of its own, taken up twice, as after a crash: these packages leave threads and exit hooks."""
    parts = [json.dumps(ROWS[:3]), json.dumps(ROWS[3:])]
    subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, name, str(directory), *parts],
        check=True,
        capture_output=True,
        env={**os.environ, "HOME": str(directory), **environment},
        timeout=120,
    )


def test_tensorboard_holds_every_value_at_its_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run_sink("tensorboard", tmp_path, environment={})
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for file in sorted((tmp_path / "tensorboard").glob("events*")):
        events = EventAccumulator(str(file))
        events.Reload()
        for tag in events.Tags()["scalars"]:
            found.setdefault(tag, []).extend((point.step, point.value) for point in events.Scalars(tag))
    assert found == {"eval/heldout/avg@1": [(0, 0.5), (1, 0.75)], "reward/mean": [(1, 0.25), (2, 0.5)]}


def test_trackio_holds_every_row_under_one_run(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    run_sink("trackio", tmp_path, environment={"TRACKIO_DIR": str(tmp_path / "trackio")})
    with sqlite3.connect(tmp_path / "trackio" / "river.db") as database:
        rows = database.execute("select run_name, run_id, step, metrics from metrics order by id").fetchall()
    assert [{"step": step} | json.loads(metrics) for _, _, step, metrics in rows] == list(ROWS)
    assert len({(name, number) for name, number, _, _ in rows}) == 1
    assert rows[0][0] == "first"


def test_wandb_offline_holds_every_row_and_a_resumed_run_keeps_its_id(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    run_sink("wandb-offline", tmp_path, environment={"WANDB_CONFIG_DIR": str(tmp_path), "WANDB_ERROR_REPORTING": "0"})
    from wandb.proto.wandb_internal_pb2 import Record

    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    assert len({file.name for file in files}) == 1, "both parts have the same run id"
    found: dict[int, dict[str, float]] = {}
    for file in files:
        for data in leveldb_records(file.read_bytes()[7:]):
            record = Record.FromString(data)
            if record.WhichOneof("record_type") == "history":
                values = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
                step = int(values.pop("_step"))
                kept = {name: float(text) for name, text in values.items() if not name.startswith("_")}
                found.setdefault(step, {}).update(kept)
    assert found == {
        0: {"eval/heldout/avg@1": 0.5},
        1: {"reward/mean": 0.25, "eval/heldout/avg@1": 0.75},
        2: {"reward/mean": 0.5},
    }


def leveldb_records(data: bytes) -> Iterator[bytes]:
    """W&B's files are LevelDB logs behind a header of seven bytes: blocks of 32 kB, records maybe in parts."""
    position, parts = 7, b""
    data = bytes(7) + data
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, position)
        parts += data[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):
            yield parts
            parts = b""


def test_a_logger_nobody_knows_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    experiment = Experiment(directory=tmp_path, project="river", name="first", config={})
    with pytest.raises(ValueError, match="no logger 'mlflow'; there are tensorboard, wandb, wandb-offline, trackio"):
        open_sinks(["mlflow"], experiment, lambda part, error: None)


def test_a_missing_package_is_a_sentence_that_names_the_extra(tmp_path: Path) -> None:
    script = SCRIPT.replace("import json, sys", "import json, sys; sys.modules['trackio'] = None", 1)
    done = subprocess.run(
        [sys.executable, "-c", script, "trackio", str(tmp_path), "[]"], capture_output=True, text=True, check=False
    )
    assert "logger 'trackio' needs the package trackio: pip install 'tailrace[trackio]'" in done.stderr


class Collecting:
    """A sink with room for so many rows."""

    def __init__(self, room: int) -> None:
        self.rows: list[Row] = []
        self.room, self.is_closed = room, False

    def write(self, row: Row) -> None:
        if len(self.rows) == self.room:
            raise OSError(28, "No space left on device")
        self.rows.append(row)

    def close(self) -> None:
        self.is_closed = True


def test_a_sink_that_fails_is_left_out_with_a_sentence_and_the_others_go_on() -> None:
    broken: list[tuple[str, str]] = []
    small, large = Collecting(room=2), Collecting(room=99)
    sinks = Sinks({"wandb": small, "trackio": large}, lambda part, error: broken.append((part, str(error))))
    for row in ROWS:
        sinks.write(row)
    sinks.close()
    assert large.rows == list(ROWS)
    assert large.is_closed
    assert broken == [("logger wandb", "[Errno 28] No space left on device")]
