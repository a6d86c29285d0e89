"""A memory cgroup around one sandbox: it limits all processes and files in memory together.

Version 1 and 2 are known. In version 2 a group can be made only below one that hands the memory controller on, which is
the own group only at the root, so the groups above are tried too. Where none can be made, `find` says why, and each
process is limited by itself.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_PREFIX = "tailrace-sandbox-"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryParent:
    """A group below which groups for sandboxes can be made."""

    folder: Path
    version: int

    @classmethod
    def find(cls, proc: Path = Path("/proc/self")) -> Self | str:
        """Such a group, or the reason why there is none."""
        reasons = []
        for version, folder in own_groups(proc):
            try:
                found = cls(folder=folder, version=version)._upwards()
            except OSError as error:
                reasons.append(f"{folder}: {error.strerror}")
                continue
            if found is not None:
                return found
            reasons.append(f"{folder}: no group above it hands the memory controller on")
        return "; ".join(reasons) or "there is no memory controller"

    def make(self, name: str, limit_bytes: int) -> MemoryGroup:
        group = MemoryGroup(self.folder / f"{_PREFIX}{name}", self.version)
        group.folder.mkdir(exist_ok=True)
        try:
            group.limit(limit_bytes)
        except OSError:
            group.remove()
            raise
        return group

    def remove_left(self) -> None:
        """Remove groups of processes that were killed before they could. A group in use cannot be removed."""
        for folder in self.folder.glob(f"{_PREFIX}*"):
            owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
            if owner.isdecimal() and not Path(f"/proc/{owner}").exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()

    def _upwards(self) -> Self | None:
        """This group or the nearest one above it in which a group for a sandbox can be made."""
        if self.version == 1:
            self._try()
            return self
        folder = nearest_that_hands_on(self.folder)
        if folder is None:
            return None
        found = type(self)(folder=folder, version=2)
        found._try()
        return found

    def _try(self) -> None:
        self.make(f"{os.getpid()}-try", 1 << 30).remove()


class MemoryGroup:
    def __init__(self, folder: Path, version: int) -> None:
        self.folder, self._version = folder, version
        self._num_killed = 0

    def limit(self, limit_bytes: int) -> None:
        names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        if self._version == 2:
            names = ("memory.max", "memory.swap.max")
        (self.folder / names[0]).write_text(str(limit_bytes))
        if (self.folder / names[1]).exists():  # swap: no more than memory, or none
            (self.folder / names[1]).write_text(str(limit_bytes if self._version == 1 else 0))

    def add(self, process: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(process))

    def has_killed(self) -> bool:
        """Whether processes were killed because the group had no memory left, since this was asked last."""
        name = "memory.oom_control" if self._version == 1 else "memory.events"
        fields = dict(line.split(maxsplit=1) for line in (self.folder / name).read_text().splitlines())
        before, self._num_killed = self._num_killed, int(fields.get("oom_kill", 0))
        return self._num_killed > before

    def remove(self) -> None:
        self.folder.rmdir()


def nearest_that_hands_on(folder: Path) -> Path | None:
    """The nearest group of version 2, this one or one above it, whose groups have the memory controller."""
    for each in (folder, *folder.parents):
        control = each / "cgroup.subtree_control"
        if not control.is_file():
            return None
        if "memory" in control.read_text().split():
            return each
    return None


def own_groups(proc: Path) -> list[tuple[int, Path]]:
    """Version and folder of the groups of this process that may count memory."""
    paths = {}
    for line in (proc / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths[1 if "memory" in controllers.split(",") else 2 if not controllers else 0] = path
    found = []
    for line in (proc / "mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, place = before.split()[3:5]
        kind, _, options = after.split(maxsplit=2)
        version = 1 if kind == "cgroup" and "memory" in options.split(",") else 2 if kind == "cgroup2" else 0
        if version in paths and version and not paths[version].startswith("/.."):
            inside = os.path.relpath(paths[version], root)
            found.append((version, Path(os.path.normpath(os.path.join(place, inside)))))
    return sorted(found)
