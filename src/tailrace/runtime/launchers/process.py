"""Workers as processes of this machine. `runtime/launchers/worker.py` says what every worker does.

* When `lose` is called, the process is reaped, and everything that it started is dead. Only a process that hangs in the
  kernel is left behind, after 60 s, and the reason says so. On Linux a *keeper* between controller and worker sees to
  it (`workers/keeper.py`); elsewhere only the processes of the worker's group are killed.
* A worker cannot outlive its controller (see `tailrace.workers.link`).
* Workers are started as `python -m tailrace.workers.process`, not forked or spawned by multiprocessing: a user's
  script needs no `if __name__ == "__main__"` guard, and a worker imports only what it needs.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

from tailrace.runtime.launchers.delivery import Delivery
from tailrace.runtime.launchers.link_reader import LinkReader, ReadLink
from tailrace.runtime.launchers.worker import Hear, Lose, WorkerHandle, WorkerSpec
from tailrace.runtime.threads.loop_calls import call_from_thread
from tailrace.weights.collective.own_address import on_loopback
from tailrace.workers.keeper import (
    ENTRY_VARIABLE,
    GIVE_UP_S,
    LEFT_BEHIND,
    LIFELINE_VARIABLE,
    LINK_VARIABLE,
    NOTE_VARIABLE,
    keeper_command,
    worker_command,
)
from tailrace.workers.stop_signals import stop_signals_blocked

_HAS_KEEPERS = sys.platform == "linux"
_UNLINKED_GRACE_S = 2.0
_NO_REASON = ("For further information visit", "Set TORCHDYNAMO_VERBOSE=1")
"""How the last lines of errors of pydantic and torch.compile begin. The reason is above them."""
_LOG_TAIL_BYTES = 4096


class ProcessLauncher:
    """Starts workers as processes whose output goes into a folder, one file for each name."""

    shares_files = True

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._readers: dict[float, LinkReader] = {}
        """By the seconds for which they gather messages."""

    def __call__(self, spec: WorkerSpec, *, hear: Hear, lose: Lose) -> WorkerHandle:
        self._logs.mkdir(parents=True, exist_ok=True)
        if (reader := self._readers.get(spec.gather_s)) is None:
            reader = self._readers[spec.gather_s] = LinkReader(spec.gather_s)
        return WorkerProcess.start(spec, log=self._logs / f"{spec.name}.log", hear=hear, lose=lose, reader=reader)


class WorkerProcess:
    """Owns one worker process, everything that it starts, and its link. Use it from the event loop that started it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        *,
        name: str,
        end: socket.socket,
        lifeline: int,
        note: int,
        log: Path | None,
        log_start: int,
        hear: Hear,
        lose: Lose,
    ) -> None:
        self.name = name
        self.pid = process.pid
        """Process id of the keeper, where there is one, else of the worker."""
        self._process = process
        self._end = end
        self._connection = Connection(os.dup(end.fileno()))
        self._lifeline: int | None = lifeline
        self._note = note
        """Where the keeper says that the worker is left behind."""
        self._log, self._log_start = log, log_start
        self._delivery = Delivery(hear=hear, lose=lose)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._dead = threading.Event()
        self._reaping = threading.Lock()
        self._is_reaped = False
        self._unreadable: str | None = None
        self._incoming = ReadLink(
            end=end, loop=self._delivery.loop, hear=self._delivery.deliver, close=self._end_of_link
        )

    @classmethod
    def start(
        cls,
        spec: WorkerSpec,
        *,
        log: Path | None,
        hear: Hear,
        lose: Lose,
        reader: LinkReader | None = None,
        is_apart: bool = False,
    ) -> Self:
        """Start a process and send it its `init`. Output is appended to `log` (None: goes where ours goes). `reader`:
        reads its messages; None: one of its own. `is_apart`: the keeper must not be our child (`keeper_command`)."""
        parent_end, child_end = socket.socketpair()
        lifeline_of_child, lifeline = os.pipe()
        note, note_of_keeper = os.pipe()
        descriptors = {
            LINK_VARIABLE: child_end.fileno(),
            LIFELINE_VARIABLE: lifeline_of_child,
            **({NOTE_VARIABLE: note_of_keeper} if _HAS_KEEPERS else {}),
        }
        log_start = log.stat().st_size if log is not None and log.exists() else 0
        output = None if log is None else os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            with stop_signals_blocked():
                process = subprocess.Popen(
                    keeper_command(spec.name, is_apart=is_apart) if _HAS_KEEPERS else worker_command(spec.entry),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=tuple(descriptors.values()),
                    env=_environment(spec.env, descriptors) | {ENTRY_VARIABLE: spec.entry},
                    start_new_session=True,
                )
        finally:
            child_end.close()
            os.close(lifeline_of_child)
            os.close(note_of_keeper)
            if output is not None:
                os.close(output)
        worker = cls(
            process,
            name=spec.name,
            end=parent_end,
            lifeline=lifeline,
            note=note,
            log=log,
            log_start=log_start,
            hear=hear,
            lose=lose,
        )
        worker.send(spec.init)
        (LinkReader() if reader is None else reader).add(worker._incoming)
        worker._start_threads()
        return worker

    @property
    def is_alive(self) -> bool:
        return not self._dead.is_set()

    def send(self, message: object) -> None:
        self._outbox.put(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    def kill(self) -> None:
        """SIGKILL to the worker and to all that it has started."""
        with self._reaping:  # a reaped process's id may already name somebody else
            if self._is_reaped:
                return
            if _HAS_KEEPERS:
                self._cut_lifeline()
                os.kill(self.pid, signal.SIGCONT)  # the keeper may be stopped
            else:
                _kill_group(self.pid)

    async def stop(self, grace_s: float = 5.0) -> None:
        """Close the link behind the messages already sent, wait, kill."""
        self._delivery.silence()
        self._outbox.put(None)
        if not await self._delivery.wait(grace_s):
            self.kill()
            await self._delivery.wait()

    def _start_threads(self) -> None:
        writer = threading.Thread(target=self._write, name=f"{self.name}-writer", daemon=True)
        waiter = threading.Thread(target=self._wait, args=(writer,), name=f"{self.name}-waiter", daemon=True)
        for thread in (writer, waiter):
            thread.start()

    def _end_of_link(self, problem: str | None) -> None:
        if problem is not None:
            self._unreadable = f"worker {self.name!r} sent a message that cannot be read: {problem}"
            self.kill()
        elif self.is_alive:
            # A worker that lost its link is of no use; one that is just ending keeps its own exit code.
            self._delivery.loop.call_later(_UNLINKED_GRACE_S, self.kill)

    def _write(self) -> None:
        try:
            while (data := self._outbox.get()) is not None:
                self._connection.send_bytes(data)
            self._end.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the worker is gone; the waiting thread tells

    def _wait(self, writer: threading.Thread) -> None:
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self._dead.set()
        # What the worker started may hold the link open.
        if _HAS_KEEPERS:
            with contextlib.suppress(OSError):
                self._end.shutdown(socket.SHUT_RDWR)  # what has come can still be read
        else:
            _kill_group(self.pid)  # not reaped yet, so the group's id is still ours
        self._outbox.put(None)
        self._incoming.is_read.wait()
        writer.join()
        with self._reaping:
            self._is_reaped = True
            code = self._process.wait()
            self._cut_lifeline()
        self._connection.close()
        self._end.close()
        is_left_behind = self._read_note()
        call_from_thread(self._delivery.loop, [(partial(self._finish, is_left_behind=is_left_behind), code)])

    def _cut_lifeline(self) -> None:
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def _read_note(self) -> bool:
        """Whether the keeper said that the worker is left behind. It has ended, so there is nothing to wait for."""
        os.set_blocking(self._note, False)
        try:
            return os.read(self._note, len(LEFT_BEHIND)) == LEFT_BEHIND
        except BlockingIOError:
            return False  # a process that was forked from this one holds the other end
        finally:
            os.close(self._note)

    def _finish(self, code: int, is_left_behind: bool) -> None:
        self._delivery.finish(self._reason(code, is_left_behind))

    def _reason(self, code: int, is_left_behind: bool) -> str:
        if self._unreadable is not None:
            return self._unreadable
        return reason_of(code, name=self.name, last_line=self._last_log_line(), is_left_behind=is_left_behind)

    def _last_log_line(self) -> str:
        if self._log is None or not self._log.exists():
            return ""
        with self._log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(self._log_start, size - _LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
        said = (line.strip() for line in reversed(lines))
        return next((line for line in said if line and not line.startswith(_NO_REASON)), "")


def reason_of(code: int, *, name: str, last_line: str = "", is_left_behind: bool = False) -> str:
    """Return why a worker is lost. ``code``: its exit code; ``last_line``: the last line that it wrote."""
    if is_left_behind:
        return (
            f"worker {name!r} did not end within {GIVE_UP_S:g} s after SIGKILL and is left behind: it hangs in the"
            " kernel, for example in a driver or a network file system"
        )
    if code < 0:
        return f"worker {name!r} was killed by {_signal_name(-code)}"
    return f"worker {name!r} exited with code {code}" + (f": {last_line}" if last_line else "")


def _environment(extra: Mapping[str, str], descriptors: Mapping[str, int]) -> dict[str, str]:
    """Ours, plus `extra`, plus the descriptors. The worker listens for others on this machine alone, it finds every
    module that we find, and output is not held back."""
    environment = {**os.environ, **on_loopback(), **extra}
    paths = [*extra.get("PYTHONPATH", "").split(os.pathsep), *sys.path]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    environment["PYTHONUNBUFFERED"] = "1"
    return environment | {name: str(number) for name, number in descriptors.items()}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass  # everybody in it has ended
    except PermissionError:
        pass  # macOS answers so for a group of zombies
