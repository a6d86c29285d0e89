"""The keeper of a worker process, on Linux: the worker's parent, which leaves nothing of it behind.

    controller --- keeper --- worker --- whatever the worker starts

* When the worker ends, everything that it started is killed, also daemons and what runs in a session of its own:
  processes whose parent has ended become children of the keeper (a *child subreaper*).
* The same happens when the controller closes its end of the lifeline, or dies.
* The keeper ends last, and in the way in which the worker ended: with its exit code, or by its signal. A worker that
  does not end although it was killed is left behind after ``GIVE_UP_S``: the keeper says so through a pipe (*note*),
  which the worker does not have.
* Memory cgroups that the worker has made for programs (``rewards/sandbox``) are removed.
* When the keeper itself is killed, the kernel kills the worker. What the worker started is then left to itself.
* Signals that ask a process to end do not end the keeper. A signal that was ignored when the keeper started is ignored
  in the worker too.

It is run as a script, by an interpreter without site packages, and imports the standard library only: it has to start
quickly and to stay small.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections import defaultdict

ENTRY_VARIABLE = "TAILRACE_ENTRY"
LINK_VARIABLE = "TAILRACE_LINK_FD"
LIFELINE_VARIABLE = "TAILRACE_LIFELINE_FD"
NOTE_VARIABLE = "TAILRACE_NOTE_FD"

_APART = "apart"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals by which a run is asked to stop. Keepers and workers start with these blocked, and unblock them when they can
handle them, so that none ends a process that has just been started."""
_ENDING_SIGNALS = (*STOP_SIGNALS, signal.SIGQUIT, signal.SIGUSR2)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_LOOK_AGAIN_S = 0.05
"""Seconds after which killed processes are looked for again, if their end is not told to the keeper."""
GIVE_UP_S = 60.0
"""Seconds after which the keeper does not wait any more for killed processes. One with much memory may need some of
them to end; one that hangs in the kernel (state D) does not end at all."""
LEFT_BEHIND = b"left behind"
"""What the note of a keeper says that did not see its worker end."""


def worker_command(entry: str) -> list[str]:
    """The command line of a worker process whose function is `entry`."""
    return [sys.executable, "-P", "-m", "tailrace.workers.process", entry]


def keeper_command(name: str, *, is_apart: bool = False) -> list[str]:
    """The command line of a keeper. The name is there for people who look at processes. `is_apart`: put a process
    between the controller and the keeper, for a controller whose children are killed when it ends."""
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), name, *([_APART] if is_apart else [])]


def main() -> None:
    lifeline, note = int(os.environ[LIFELINE_VARIABLE]), int(os.environ.pop(NOTE_VARIABLE))
    os.set_inheritable(note, False)
    if _APART in sys.argv[2:] and (keeper := os.fork()):
        _stand_between(keeper, lifeline, note)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    ended = _hear_of_ends()
    own_id = os.getpid()
    worker = os.fork()
    if worker == 0:
        _become_worker(own_id)
    _let_go(int(os.environ[LINK_VARIABLE]))
    kept = _Kept(worker)
    while kept.status is None:
        ready, _, _ = select.select([ended, lifeline], [], [])
        if lifeline in ready:
            break
        os.read(ended, 4096)
        kept.reap()
    kept.end(ended)
    _remove_groups(worker)
    end_like(kept.status, note)


class _Kept:
    """The worker, and all processes below it."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self.status: int | None = None
        """How the worker ended."""

    def reap(self) -> bool:
        """Take note of children that have ended. Return whether there are others."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._worker:
                self.status = status

    def end(self, ended: int, give_up_s: float = GIVE_UP_S) -> None:
        """Kill all of them, and wait until they have ended. Processes that do not end in time are left."""
        give_up_at = time.monotonic() + give_up_s
        while self.reap() and _kill_all(_descendants(os.getpid())):
            if time.monotonic() > give_up_at:
                break
            if select.select([ended], [], [], _LOOK_AGAIN_S)[0]:
                os.read(ended, 4096)


def _descendants(ancestor: int) -> list[int]:
    """Ids of the processes below this one."""
    children = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdecimal() and (parent := _parent(name)) is not None:
            children[parent].append(int(name))
    below = [ancestor]
    for pid in below:
        below += children[pid]
    return below[1:]


def _parent(pid: str) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None  # it has ended meanwhile


def _kill_all(processes: list[int]) -> bool:
    """Return whether there is one that could be killed."""
    num_killed = 0
    for pid in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            num_killed += 1
    return num_killed > 0


def _remove_groups(worker: int) -> None:
    """Remove memory cgroups that the worker has made for programs and was killed before it could remove."""
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        paths = {line.rstrip("\n").split(":", 2)[2].strip("/") for line in file}
    for path in paths:
        for place in ("memory", "", "unified"):
            folder = os.path.join("/sys/fs/cgroup", place, path)
            # In version 2 they may be beside the own group, or higher up.
            while folder != "/sys/fs":
                _remove_empty(folder, f"tailrace-sandbox-{worker}-")
                folder = os.path.dirname(folder.rstrip("/"))


def _remove_empty(folder: str, prefix: str) -> None:
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            if name.startswith(prefix):
                os.rmdir(os.path.join(folder, name))


def _hear_of_ends() -> int:
    """A descriptor that can be read when a child has ended. From now on signals that end a process do nothing."""
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, *_ENDING_SIGNALS):
        if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    return told


def _do_nothing(number: int, frame: object) -> None:
    pass


def _become_worker(keeper: int) -> None:
    """Run the worker in this process, with the signals that the keeper was started with."""
    try:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(1)
        for number in _IGNORED_BY_PYTHON:  # those with a handler get their default back by themselves
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # until the worker can handle them
        command = worker_command(os.environ.pop(ENTRY_VARIABLE))
        os.execv(command[0], command)
    finally:
        os._exit(127)


def _let_go(link: int) -> None:
    """Leave link and output to the worker."""
    os.close(link)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        os.dup2(nowhere, number)


def _stand_between(keeper: int, lifeline: int, note: int) -> None:
    _hear_of_ends()
    _let_go(int(os.environ[LINK_VARIABLE]))
    os.close(lifeline)
    end_like(os.waitpid(keeper, 0)[1], note)


def end_like(status: int | None, note: int) -> None:
    """End this process as the worker has ended. ``status`` is None if it has not: the note then says so."""
    if status is None:
        os.write(note, LEFT_BEHIND)
        os._exit(1)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the worker has left its own
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
