"""Real runs that a full disk, a killed engine or a flipped byte has hit: what they say, and what the doctor says.

A disk is full here for one process and from one moment on: the operating system refuses every byte beyond a limit on
the size of files (``RLIMIT_FSIZE``), as it refuses them on a disk without room.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from end_to_end import launch
from tailrace.cli.main import main
from tailrace.dashboard.diagnosis import Diagnosis
from tailrace.dashboard.doctor import examine
from tailrace.store.checkpoint_files import damage

pytestmark = [pytest.mark.slow, pytest.mark.long]
SHORT = {"eval": "[]", "eval_interval": "null", "save_interval": 1, "schedule__max_steps": 500}
"""A checkpoint after every step, and no end in sight."""


def begin(output: Path, **overrides: object) -> subprocess.Popen[str]:
    arguments = launch.command(output, **(SHORT | overrides))
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_until(process: subprocess.Popen[str], has_come: Callable[[], object]) -> None:
    deadline = time.monotonic() + 200
    while not has_come():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def worker(process: subprocess.Popen[str], name: str) -> psutil.Process | None:
    children = psutil.Process(process.pid).children(recursive=True)
    return next((child for child in children if f"tailrace.workers.{name}_worker:serve" in child.cmdline()), None)


def fill_disk(pid: int, num_bytes: int) -> None:
    """From now on no file of this process grows beyond so many bytes."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (num_bytes, num_bytes))


def finding(diagnosis: Diagnosis, subject: str) -> str:
    return next(found.what for found in diagnosis.findings if found.subject == subject)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, int]:
    """A run whose trainer ran out of disk while it wrote a checkpoint: where it lies, what it said, how it ended."""
    output = tmp_path_factory.mktemp("full") / "run"
    process = begin(output)
    wait_until(process, (output / "checkpoints" / "step_1").exists)
    trainer = worker(process, "training")
    assert trainer is not None
    fill_disk(trainer.pid, 100_000)
    printed, _ = process.communicate(timeout=200)
    return output, printed, process.returncode


def test_a_full_disk_ends_the_run_with_a_sentence_and_what_to_do(full: tuple[Path, str, int]) -> None:
    output, printed, status = full
    assert status == 1
    assert "the run ended early: the checkpoint of step " in printed
    assert "could not be written: " in printed
    assert "File too large" in printed
    assert f"free some space on the disk of {output}, then the same command continues it from here" in printed
    assert "Traceback" not in printed


def test_a_full_disk_leaves_the_previous_checkpoint_whole(full: tuple[Path, str, int]) -> None:
    from transformers import AutoModelForCausalLM

    output, _, _ = full
    folder = output / "checkpoints"
    newest = (folder / "latest").resolve()
    assert damage(newest) is None
    assert AutoModelForCausalLM.from_pretrained(newest).num_parameters() > 0
    assert not list(folder.glob("*.partial")), "a piece of a checkpoint takes the room that is needed"


def test_the_doctor_names_a_full_disk(full: tuple[Path, str, int], capsys: pytest.CaptureFixture[str]) -> None:
    output, _, _ = full
    diagnosis = examine(output)
    assert finding(diagnosis, "disk").startswith("the disk was full: the checkpoint of step ")
    assert main(["doctor", str(output)]) == 1
    assert "the disk was full: " in capsys.readouterr().out


@pytest.fixture
def copy(full: tuple[Path, str, int], tmp_path: Path) -> Path:
    return shutil.copytree(full[0], tmp_path / "run", symlinks=True)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "trainer_state.safetensors", "run_state.json", "tokenizer.json"])
def test_the_doctor_finds_one_flipped_bit_of_a_checkpoint(copy: Path, name: str) -> None:
    newest = (copy / "checkpoints" / "latest").resolve()
    flip(newest / name, (newest / name).stat().st_size // 2)
    assert finding(examine(copy), "checkpoint").startswith(f"checkpoint {newest.name} is damaged: {newest.name}/{name}")


def test_a_run_does_not_go_on_from_a_damaged_checkpoint_and_says_what_to_do(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = (copy / "checkpoints" / "latest").resolve()
    flip(newest / "model.safetensors", -1)
    assert main(launch.command(copy, **SHORT)[3:]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        f"tailrace: checkpoint {newest.name} is damaged: {newest.name}/model.safetensors is not what"
    )
    assert f"move {newest} away, then the same command continues from " in error


def test_a_full_disk_under_the_journal_leaves_a_reason_until_the_run_goes_on(copy: Path) -> None:
    journal = copy / "journal.jsonl"
    size = journal.stat().st_size
    process = begin(copy, limits__max_restarts=0)
    wait_until(process, lambda: journal.stat().st_size > size)
    # Only the journal is as long as that already: everything else still finds room.
    fill_disk(process.pid, journal.stat().st_size)
    printed, _ = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "the run ended early: File too large" in printed
    assert "free some space" in printed
    assert "Traceback" not in printed
    diagnosis = examine(copy)
    assert finding(diagnosis, "disk").startswith("the disk was full: File too large")
    assert "File too large" in finding(diagnosis, "run")
    kill_the_engine_of_the_continued_run(copy)


def kill_the_engine_of_the_continued_run(run: Path) -> None:
    """With room again, the same command goes on, until its one engine is gone for good."""
    size = (run / "journal.jsonl").stat().st_size
    process = begin(run, limits__max_restarts=0)
    wait_until(process, lambda: b"RolloutReported" in (run / "journal.jsonl").read_bytes()[size:])
    engine = worker(process, "rollout")
    assert engine is not None
    engine.kill()
    printed, _ = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "SIGKILL" in printed
    diagnosis = examine(run)
    assert "its engine was lost once; the last time: " in finding(diagnosis, "instance 0")
    assert "SIGKILL" in finding(diagnosis, "instance 0")
    assert "File too large" not in finding(diagnosis, "run"), "the old reason outlived its cause"
