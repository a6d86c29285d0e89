"""Processes that play programs, as root and as an ordinary user, and what programs may have left behind."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest

from rewards.sandbox.hostile import LISTENER, VARIABLE, Hostile
from tailrace.rewards.sandbox.bubblewrap import INSTALL_LINE

ROOT = Path(__file__).parents[3]
USERS = ("root", "ordinary")
HOST_FILE = "of-the-host.txt"
SMALL = {"memory_mb": 128, "output_kb": 256, "tmp_mb": 8, "processes": 8}
_SETTINGS = ("kernel/core_pattern", "kernel/hostname", "kernel/randomize_va_space", "vm/overcommit_memory")
needs_bubblewrap = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("bwrap") is None, reason=f"bubblewrap is missing: {INSTALL_LINE}"
)


@dataclass
class Player:
    process: subprocess.Popen[str]
    mode: str = "strong"

    @classmethod
    def start(cls, user: str, mode: str = "strong") -> Self:
        """A player that is this user. The test is skipped if it cannot be made here."""
        command = [sys.executable]
        if user == "root" and os.geteuid() != 0:
            pytest.skip("the tests do not run as root")
        if user == "ordinary" and os.geteuid() == 0:
            uid = str(200_000 + os.getpid() % 100_000)
            become = ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "--no-new-privs"]
            command = [*become, interpreter_for_all()]
        sources = open_sources()
        environment = {"PYTHONPATH": str(sources), VARIABLE: "of the host", "PATH": os.environ["PATH"]}
        process = subprocess.Popen(
            [*command, "-B", str(sources / "player.py"), LISTENER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        return cls(process, mode)

    def play(
        self, program: str, cases: list[dict[str, object]], *, stop: bool = True, limit_s: float = 60.0
    ) -> dict[str, Any]:
        job = {"program": program, "cases": cases, "limits": SMALL, "mode": self.mode, "stop": stop, "limit_s": limit_s}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer

    def attack(self, hostile: Hostile) -> dict[str, Any]:
        return self.play(hostile.program, [self.case_of(hostile)], limit_s=hostile.limit_s)

    def case_of(self, hostile: Hostile) -> dict[str, object]:
        if hostile.function:
            return {"function": hostile.function, "arguments": (), "value": hostile.expected}
        return {"stdin": f"{open_sources() / HOST_FILE}\n{self.process.pid}\n", "stdout": hostile.expected}

    def honest(self) -> list[str]:
        """Verdicts of honest programs, which must be what they would be alone."""
        adds = {"stdin": "3 4\n", "stdout": "7\n"}
        calls = {"function": "double", "arguments": (21,), "value": 42}
        return [
            self.play("print(sum(map(int, input().split())))", [adds])["verdict"],
            self.play("class Solution:\n    def double(self, n: Optional[int]) -> int: return 2 * n", [calls])[
                "verdict"
            ],
            self.play("print(8)", [adds])["verdict"],
        ]

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(60)


@functools.cache
def open_sources() -> Path:
    """A copy of what a player needs, and a file of the host, that every user can read: the checkout may be closed."""
    folder = Path(tempfile.mkdtemp(prefix="tailrace-sources-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copytree(ROOT / "src" / "tailrace", folder / "tailrace", ignore=shutil.ignore_patterns("assets", "*.pyc"))
    shutil.copy(Path(__file__).with_name("player.py"), folder)
    (folder / HOST_FILE).write_text("of the host")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


@functools.cache
def interpreter_for_all() -> str:
    """An interpreter that every user can run, new enough for the package."""
    for name in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        path = Path(os.path.realpath(name))
        is_open = path.is_file() and all(folder.stat().st_mode & 0o001 for folder in path.parents)
        if is_open and all(folder.stat().st_mode & 0o001 for folder in open_sources().parents):
            told = subprocess.run([path, "-c", "import sys; print(sys.version_info >= (3, 11))"], capture_output=True)
            if told.stdout.strip() == b"True":
                return str(path)
    pytest.skip("there is no interpreter (3.11 or newer) that an ordinary user can run, or no way to the sources")


def left_behind(player: Player, uid: int) -> list[str]:
    """Processes and files of a user, and groups and descriptors of the player, that a program has left."""
    found = [f"process {path.name}" for path in Path("/proc").iterdir() if path.name.isdecimal() and _is_of(path, uid)]
    found = [name for name in found if name != f"process {player.process.pid}"]
    for folder in ("/tmp", "/dev/shm", "/var/tmp"):
        found += [f"file {path}" for path in Path(folder).iterdir() if _is_of(path, uid)]
    children = Path(f"/proc/{player.process.pid}/task/{player.process.pid}/children").read_text().split()
    found += [f"child {child} of the player" for child in children]
    return found + [f"group {path}" for path in groups(player)]


def groups(player: Player) -> list[Path]:
    """Memory cgroups that the player has made, wherever they are."""
    return list(Path("/sys/fs/cgroup").glob(f"**/tailrace-sandbox-{player.process.pid}-*"))


def settings_of_the_machine() -> dict[str, str]:
    known = {name: (Path("/proc/sys") / name).read_text() for name in _SETTINGS}
    return known | {"mounts": Path("/proc/self/mounts").read_text()}


def is_escape(answer: dict[str, Any]) -> bool:
    return answer["verdict"] == "passed"


def _is_of(path: Path, uid: int) -> bool:
    try:
        return path.lstat().st_uid == uid
    except OSError:
        return False
