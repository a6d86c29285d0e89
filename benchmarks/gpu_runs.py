"""One `tailrace train` in a process of its own, as benchmarks on a GPU need it: watched, its journal kept."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

HERE = Path(__file__).resolve().parent
_LEFT_OUT = ("step", "train: ", "rewards: ")
"""Beginnings of lines that are not kept: progress, and files of a temporary folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    folder: Path
    said: list[str]
    """Its first lines."""
    peak_used_gib: float | None
    """Most memory in use on the GPU, by all processes; None without nvidia-smi."""

    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def journal(self) -> Path:
        return self.folder / "journal.jsonl"

    def keep(self, folder: Path, name: str) -> None:
        """Keep the journal, compressed, and the settings."""
        folder.mkdir(parents=True, exist_ok=True)
        with self.journal.open("rb") as source, gzip.open(folder / f"{name}.jsonl.gz", "wb") as target:
            shutil.copyfileobj(source, target)
        settings = json.loads((self.folder / "config.json").read_text())
        text = json.dumps(portable(settings, [self.folder.parent, HERE.parent]), indent=2)
        (folder / f"{name}.config.json").write_text(text + "\n")


def portable(value: Any, roots: Sequence[Path]) -> Any:
    """Settings whose paths mean something on another machine: relative to the first root they are under, or the last
    part alone."""
    match value:
        case dict():
            return {key: portable(each, roots) for key, each in value.items()}
        case list():
            return [portable(each, roots) for each in value]
        case str() if value.startswith("/"):
            path = Path(value)
            root = next((root for root in roots if path.is_relative_to(root)), path.parent)
            return str(path.relative_to(root))
    return value


def change(recipe: dict[str, Any], pairs: Sequence[str]) -> None:
    """Put further settings into a recipe, each as NAME=JSON, like ``trainer.torch_compile=true``."""
    for name, _, value in (pair.partition("=") for pair in pairs):
        *sections, last = name.split(".")
        section = recipe
        for each in sections:
            section = section.setdefault(each, {})
        section[last] = json.loads(value)


def train(recipe: dict[str, Any], folder: Path) -> Run:
    """``recipe``: settings without ``output_dir``. Raises ``RuntimeError`` with the run's last words if it fails."""
    command = _command(recipe, folder)
    with peak_memory() as used_gib:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    said = _without_folders(done.stdout.splitlines()[:10], folder)
    return Run(folder=folder / "run", said=said, peak_used_gib=max(used_gib, default=None))


def _without_folders(lines: Sequence[str], folder: Path) -> list[str]:
    """Lines without those about progress and about files of the temporary folder."""
    return [line for line in lines if not line.startswith(_LEFT_OUT) and str(folder) not in line]


def means(steps: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, float]:
    """Mean of each metric over the steps that have it. A metric that no step has is left out."""
    found = {name: [step[name] for step in steps if name in step] for name in names}
    return {name: round(fmean(values), 4) for name, values in found.items() if values}


def plan(recipe: dict[str, Any], folder: Path) -> list[str]:
    """What ``tailrace train --dry-run`` says about the run and its memory."""
    done = subprocess.run([*_command(recipe, folder), "--dry-run"], capture_output=True, text=True, check=False)
    return _without_folders((done.stdout + done.stderr).splitlines(), folder)


def _command(recipe: dict[str, Any], folder: Path) -> list[str]:
    path = folder / "recipe.yaml"
    path.write_text(json.dumps({"output_dir": str(folder / "run"), "report": False, **recipe}))
    return [sys.executable, "-m", "tailrace", "train", str(path)]


@contextmanager
def peak_memory() -> Iterator[list[float]]:
    """GiB in use on the GPU by all processes, looked at twice a second; empty without nvidia-smi."""
    found: list[float] = []
    is_over = threading.Event()

    def look() -> None:
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        while not is_over.wait(0.5):
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            found.append(round(float(said.splitlines()[0]) / 1024, 2))

    watcher = threading.Thread(target=look)
    if shutil.which("nvidia-smi"):
        watcher.start()
    try:
        yield found
    finally:
        is_over.set()
        if watcher.is_alive():
            watcher.join()
