"""The interpreter that runs programs, and the files it needs.

By default it is the one that runs this process, without its packages: programs get the standard library.
"""

from __future__ import annotations

import functools
import marshal
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tailrace.rewards.sandbox.cases import SandboxError

_SYSTEM_LIBRARIES = ("/usr/lib", "/usr/lib32", "/usr/lib64", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache")
_START = (
    "import os,sys,marshal\n"
    "n=int.from_bytes(os.read(int(sys.argv[1]),4),'big');b=b''\n"
    "while len(b)<n:b+=os.read(int(sys.argv[1]),n-len(b))\n"
    "d={'__name__':'harness'}\n"
    "exec(marshal.loads(b[1:]) if b[:1]==b'm' else compile(b[1:],'harness.py','exec'),d)\n"
    "d['serve'](int(sys.argv[1]),sys.argv[2]=='strong')\n"
)
"""Reads the harness from the channel, so that no file of ours has to be visible to programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    executable: str
    folders: tuple[str, ...]
    """Files and folders that it needs, besides the libraries of the system."""

    @classmethod
    def find(cls, path: str | None = None) -> Self:
        """The interpreter at `path`, or the one that runs this process. A virtual environment leads to its base."""
        executable = os.path.realpath(path or getattr(sys, "_base_executable", "") or sys.executable)
        if not os.access(executable, os.X_OK):
            raise SandboxError(f"the interpreter {executable} cannot be run")
        prefix = Path(executable).parent.parent
        libraries = [str(prefix / name) for name in ("lib", "lib64") if (prefix / name).is_dir()]
        return cls(executable=executable, folders=(*libraries, executable))

    @property
    def is_ours(self) -> bool:
        """Whether it can load compiled code of this process."""
        own = getattr(sys, "_base_executable", "") or sys.executable
        return self.executable == os.path.realpath(own)

    def command(self, channel: int, mode: str) -> list[str]:
        return [self.executable, "-I", "-S", "-X", "utf8", "-c", _START, str(channel), mode]

    def harness(self) -> bytes:
        """What the interpreter is sent first: compiled code if it is ours, else the text."""
        text = Path(__file__).with_name("harness.py").read_bytes()
        if self.is_ours:
            return b"m" + marshal.dumps(compile(text, "harness.py", "exec", dont_inherit=True))
        return b"t" + text

    @functools.cache  # noqa: B019  there are few of them, and they stay
    def mounts(self) -> list[str]:
        """Arguments of bubblewrap that show these files, read-only, at their own places."""
        arguments: list[str] = []
        shown: list[str] = []
        for path in (*_SYSTEM_LIBRARIES, *self.folders):
            if os.path.islink(path):
                arguments += ["--symlink", os.readlink(path), path]
            elif os.path.exists(path) and not any(is_inside(path, other) for other in shown):
                shown.append(path)
                arguments += [*folders_above(path), "--ro-bind", path, path]
        return arguments


def folders_above(path: str) -> list[str]:
    """Make the folders that lead to a path. bubblewrap would make them such that only root can enter."""
    above = [str(folder) for folder in reversed(Path(path).parents)][1:]
    return [part for folder in above for part in ("--perms", "0755", "--dir", folder)]


def is_inside(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder
