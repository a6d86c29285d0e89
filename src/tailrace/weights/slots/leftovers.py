"""Files and folders that end with the process that made them, and what is removed if it was killed.

All have names that begin with ``PREFIX`` and lie in directories that other runs, users and containers may use too.
Everyone who uses such a file holds a lock on it (flock). The kernel ends the lock when the process ends in any way, and
knows it in every container that sees the directory; process ids would say nothing there. So what nobody holds is left
over, and ``remove_leftovers`` removes it. It touches only what belongs to this user and has our mark: a channel file of
a format that is locked, or a folder with a lock file.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import struct
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "tailrace-"
MARK = struct.Struct("<8sI")  # how a channel file begins: magic, format
MAGIC = b"tailrace"
FIRST_LOCKED_FORMAT = 3
"""Channel files of earlier formats are not locked by those who use them."""
_LOCK_FILE = "tailrace.lock"


def hold(handle: int) -> bool:
    """Lock an open file until it is closed, together with others who use it. False: it has just been removed."""
    fcntl.flock(handle, fcntl.LOCK_SH)
    return os.fstat(handle).st_nlink > 0


@contextmanager
def held_folder(kind: str, directory: Path) -> Iterator[Path]:
    """A new folder in this directory, which only this user can read. It is removed at the end."""
    folder, handle = _new_folder(kind, directory)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def remove_leftovers(directories: Iterable[Path]) -> list[Path]:
    """Remove our files and folders in these directories that no process uses any more. Return what was removed."""
    return [path for directory in directories for path in sorted(directory.glob(f"{PREFIX}*")) if _remove_if_left(path)]


def _new_folder(kind: str, directory: Path) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-", dir=directory))
        handle = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        if hold(handle):
            return folder, handle
        os.close(handle)  # somebody took it for left over before it was locked


def _remove_if_left(path: Path) -> bool:
    is_folder = path.is_dir() and not path.is_symlink()
    with suppress(OSError):  # it is gone, or belongs to somebody else
        handle = os.open(path / _LOCK_FILE if is_folder else path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if not _is_ours(handle, is_folder):
                return False
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if anybody uses it
            if is_folder:
                shutil.rmtree(path)
            elif path.stat().st_ino == os.fstat(handle).st_ino:
                path.unlink()
            return True
        finally:
            os.close(handle)
    return False


def _is_ours(handle: int, is_folder: bool) -> bool:
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return False
    if is_folder:
        return True
    mark = os.pread(handle, MARK.size, 0)
    if len(mark) < MARK.size:
        return False
    magic, file_format = MARK.unpack(mark)
    return bool(magic == MAGIC and file_format >= FIRST_LOCKED_FORMAT)
