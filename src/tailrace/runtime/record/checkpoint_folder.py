"""The folder of a run's checkpoints: which of them are complete, and which is the newest."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailrace.config.load import SettingsError
from tailrace.runtime.record.run_directory import sync_directory, write_atomically
from tailrace.store.checkpoint_files import damage
from tailrace.store.checksums import add_checksum


class CheckpointFolder:
    """Complete checkpoints by version. A directory appears under its name only when all of it is on disk."""

    def __init__(
        self, folder: Path, *, keep: int, free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free
    ) -> None:
        """``free`` returns the free bytes of the disk of a folder."""
        self._folder, self._keep, self._free = folder, keep, free

    def shortage(self, first: Callable[[], int]) -> str | None:
        """Return why there is no room for another checkpoint; None: there is. It takes as much as the last one.
        ``first`` returns how many bytes the first one is expected to take."""
        newest = self.latest()
        needed = first() if newest is None else _size(newest)
        free = self._free(self._folder)
        if free >= needed:
            return None
        return f"it needs about {_in_words(needed)}, and the disk has {_in_words(free)} free"

    def begin(self, version: int) -> Path:
        """Return an empty directory to write a checkpoint into."""
        for leftover in self._folder.glob("*.partial"):
            shutil.rmtree(leftover)
        partial = self._folder / f"step_{version}.partial"
        partial.mkdir()
        return partial

    def complete(self, version: int, state: dict[str, Any]) -> Path:
        """Add the core's state and make the checkpoint appear."""
        partial, final = self._folder / f"step_{version}.partial", self._folder / f"step_{version}"
        write_atomically(partial / "run_state.json", json.dumps(state))
        add_checksum(partial, "run_state.json")
        if final.exists():
            final.rename(final.with_suffix(".old"))
        partial.rename(final)
        _point(self._folder / "latest", final.name)
        sync_directory(self._folder)
        self._tidy()
        for old in self._versions()[: -self._keep]:
            shutil.rmtree(self._folder / f"step_{old}")
        return final

    def repair(self) -> None:
        """Repair the folder after the process ended in the middle of ``complete``."""
        for old in self._folder.glob("*.old"):
            if not old.with_suffix("").exists():
                old.rename(old.with_suffix(""))
        self._tidy()
        if (newest := self.latest()) is not None:
            _point(self._folder / "latest", newest.name)

    def refuse_damaged(self) -> None:
        """Raise ``SettingsError`` if the newest checkpoint is damaged."""
        newest = self.latest()
        if newest is not None and (problem := damage(newest)):
            others = self._versions()[:-1]
            left = f"checkpoint step_{others[-1]}" if others else "the beginning"
            raise SettingsError(
                f"checkpoint {newest.name} is damaged: {problem}; move {newest} away,"
                f" then the same command continues from {left}"
            )

    def _tidy(self) -> None:
        for old in self._folder.glob("*.old"):
            shutil.rmtree(old)

    def latest(self) -> Path | None:
        version = self.latest_version()
        return None if version is None else self._folder / f"step_{version}"

    def latest_version(self) -> int | None:
        return max(self._versions(), default=None)

    def _versions(self) -> list[int]:
        names = [path.name.removeprefix("step_") for path in self._folder.glob("step_*")]
        return sorted(int(name) for name in names if name.isdigit())


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _in_words(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def _point(link: Path, target: str) -> None:
    draft = link.with_name("latest.draft")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.replace(link)
