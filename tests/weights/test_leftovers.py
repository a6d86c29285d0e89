"""What killed processes leave in a directory that others use too, and who may remove it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailrace.core.ids import Version
from tailrace.weights.slots.leftovers import FIRST_LOCKED_FORMAT, MAGIC, MARK, held_folder, remove_leftovers
from tailrace.weights.slots.shared_memory import create, open_reader
from tailrace.weights.slots.two_slots import layout_of
from weights.contents import weights

CHANNEL = """
from pathlib import Path
import sys
from tailrace.core.ids import Version
from tailrace.weights.slots.shared_memory import create
from tailrace.weights.slots.two_slots import layout_of
from weights.contents import weights
path = Path(sys.argv[1]) / "tailrace-run.weights"
writer = create(path, layout_of(weights(0)))
writer.publish(Version(0), weights(0))
print(path, flush=True)
sys.stdin.read()
"""
HALF_MADE = """
from pathlib import Path
import sys
from tailrace.weights.slots.control_file import new_file
from tailrace.weights.slots.two_slots import layout_of
from weights.contents import weights
path = Path(sys.argv[1]) / "tailrace-run.weights"
with new_file(path, layout_of(weights(0))):
    path.rename(path.with_name(path.name + ".new"))
    print(path.with_name(path.name + ".new"), flush=True)
    sys.stdin.read()
"""
RANKS = """
from pathlib import Path
import sys
import torch
from tailrace.engines.vllm.rank_files import rank_files
with rank_files([{"w": torch.zeros(8)}], among=[Path(sys.argv[1])]) as files:
    print(Path(files[0]).parent, flush=True)
    sys.stdin.read()
"""


@contextmanager
def process(script: str, directory: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has made a file or folder, tells its path, and uses it until it is killed."""
    tests = Path(__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}{os.pathsep}{tests}"}
    command = [sys.executable, "-c", script, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as started:
        assert started.stdout is not None
        try:
            yield started, Path(started.stdout.readline().strip())
        finally:
            started.kill()


@pytest.mark.parametrize("script", [CHANNEL, HALF_MADE, RANKS], ids=["channel file", "half made", "rank files"])
def test_what_a_killed_process_left_is_removed_and_what_a_live_one_uses_stays(script: str, tmp_path: Path) -> None:
    with process(script, tmp_path) as (worker, path):
        assert path.exists()
        assert remove_leftovers([tmp_path]) == []
        worker.kill()
        worker.wait()
        assert path.exists(), "a killed process removes nothing"
        assert remove_leftovers([tmp_path]) == [path]
        assert list(tmp_path.iterdir()) == []


def test_the_files_of_a_dead_writer_stay_while_somebody_reads_them(tmp_path: Path) -> None:
    with process(CHANNEL, tmp_path) as (writer, path):
        reader = open_reader(path)
        writer.kill()
        writer.wait()
        assert remove_leftovers([tmp_path]) == []
        assert reader.fetch_whole(Version(0))[0] == 0
        reader.close()
        assert remove_leftovers([tmp_path]) == [path]


def test_a_reader_that_opens_what_is_just_being_removed_is_told_that_it_is_gone(tmp_path: Path) -> None:
    writer = create(tmp_path / "tailrace-run.weights", layout_of(weights(0)))
    writer.close()
    with pytest.raises(FileNotFoundError):
        open_reader(tmp_path / "tailrace-run.weights")


def make_foreign(directory: Path) -> None:
    (directory / "tailrace-notes.txt").write_text("mine")
    (directory / "tailrace-empty.weights").touch()
    old = MARK.pack(MAGIC, FIRST_LOCKED_FORMAT - 1)
    (directory / "tailrace-old.weights").write_bytes(old + bytes(100))  # whoever uses it holds no lock
    (directory / "somebody.weights").write_bytes(MARK.pack(MAGIC, FIRST_LOCKED_FORMAT) + bytes(100))
    (directory / "tailrace-folder").mkdir()
    (directory / "tailrace-link").symlink_to(directory / "somebody.weights")
    os.mkfifo(directory / "tailrace-pipe")


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    make_foreign(tmp_path)
    before = sorted(tmp_path.iterdir())
    assert remove_leftovers([tmp_path]) == []
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_is_private_and_removed_at_the_end(tmp_path: Path) -> None:
    with held_folder("ranks", tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "0.safetensors").write_bytes(bytes(10))
        assert remove_leftovers([tmp_path]) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_the_files_of_another_user_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "tailrace-run.weights"
    path.write_bytes(MARK.pack(MAGIC, FIRST_LOCKED_FORMAT) + bytes(100))
    os.chown(path, 12345, 12345)
    assert remove_leftovers([tmp_path]) == []
    os.chown(path, 0, 0)
    assert remove_leftovers([tmp_path]) == [path]
