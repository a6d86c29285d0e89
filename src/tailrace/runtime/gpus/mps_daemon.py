"""An MPS daemon of a run's own. It ends with the run, however the run ends.

The daemon is started and ended by a guard, a small shell process that waits until the controller closes a pipe. The
kernel closes it too when the controller is killed. The guard has its own session, so Ctrl-C does not reach it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

_GUARD = r"""
control=$1 folder=$2; shift 2
finish() { echo quit | "$control" >/dev/null 2>&1; rm -rf "$folder"; }
# Indices in CUDA_VISIBLE_DEVICES would be applied twice, by the server and by its clients.
case "$CUDA_VISIBLE_DEVICES" in GPU-*|MIG-*) hidden= ;; *) hidden="-u CUDA_VISIBLE_DEVICES" ;; esac
if ! env $hidden "$control" -d </dev/null >"$folder/start" 2>&1; then
    tail -n 1 "$folder/start"; rm -rf "$folder"; exit 1
fi
if ! "$@" </dev/null >"$folder/probe" 2>&1; then
    tail -n 1 "$folder/probe"; finish; exit 1
fi
echo ready
cat >/dev/null
finish
"""
_PROBE = (sys.executable, str(Path(__file__).with_name("mps_probe.py")))
PIPES = "CUDA_MPS_PIPE_DIRECTORY"
_ASK_LIMIT_S = 10.0
_START_LIMIT_S = 120.0
_STOP_LIMIT_S = 20.0
_LONGEST_PLACE = 40
"""Characters. The daemon makes sockets in its folder, and the path of a socket has at most 107."""


def ask(control: str, question: str, pipes: str) -> str | None:
    """The answer of the daemon whose pipes are in this folder; None: it does not answer."""
    try:
        asked = subprocess.run(
            [control],
            input=f"{question}\n",
            env={**os.environ, PIPES: pipes},
            capture_output=True,
            text=True,
            timeout=_ASK_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout if asked.returncode == 0 else None


def has_failed_server(control: str, pipes: str) -> bool:
    """Whether a server of this daemon has failed. It takes no new clients until all it has have ended."""
    servers = (ask(control, "get_server_list", pipes) or "").split()
    return any("FAULT" in (ask(control, f"get_server_status {server}", pipes) or "") for server in servers)


class MpsFailed(Exception):
    """The daemon did not start, or CUDA does not work with it."""


class MpsDaemon:
    """Owns the guard and the daemon's folder."""

    def __init__(self, guard: subprocess.Popen[str], env: dict[str, str]) -> None:
        self._guard = guard
        self.env = env
        """Environment variables of the daemon's clients."""

    @classmethod
    def start(cls, control: str, *, device: int) -> Self:
        """Start a daemon, and try CUDA on this device with it. Raises ``MpsFailed``."""
        try:
            folder = _make_folder()
        except OSError as error:
            raise MpsFailed(str(error)) from error
        env = {PIPES: str(folder / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(folder / "log")}
        try:
            for directory in env.values():
                os.mkdir(directory)
            guard = subprocess.Popen(
                ["sh", "-c", _GUARD, "sh", control, str(folder), *_PROBE, str(device)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
                start_new_session=True,
                text=True,
            )
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise MpsFailed(str(error)) from error
        daemon = cls(guard, env)
        try:
            daemon._wait_until_ready()
        except BaseException:
            daemon.stop()
            raise
        return daemon

    def stop(self) -> None:
        """End the daemon and remove its folder. Its clients must have ended."""
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # then the guard goes on by itself
            self._guard.wait(_STOP_LIMIT_S)
        self._guard.stdout.close()

    def _wait_until_ready(self) -> None:
        stdout = self._guard.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], _START_LIMIT_S)[0]:
            raise MpsFailed(f"the daemon did not start within {_START_LIMIT_S:.0f} s")
        if (line := stdout.readline().strip()) != "ready":
            raise MpsFailed(line or "the daemon did not start")


def _make_folder() -> Path:
    place = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="tailrace-mps-", dir=place if len(place) <= _LONGEST_PLACE else "/tmp"))
