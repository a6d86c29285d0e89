"""The command that isolates programs: bubblewrap makes namespaces and mounts, and starts the interpreter in them.

* Files: the libraries of the system and the interpreter, read-only; an empty `/tmp` of limited size; `/proc` of the
  sandbox alone; `/dev` with null, zero, full, random and urandom. Everything else does not exist there.
* No network, no other processes, no environment. The interpreter is process 1: programs cannot kill or stop it, and
  when it ends, the kernel kills all others.
* Started by root, bubblewrap makes the mounts with root's rights, and `setpriv` then becomes a user of the slot's own,
  which has no rights and can get none. Inside a user namespace root would stay root for the files of `/proc/sys`.
* Started by an ordinary user, bubblewrap makes a user namespace.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys

from tailrace.rewards.sandbox.cases import ProgramLimits, SandboxError
from tailrace.rewards.sandbox.interpreter import Interpreter, folders_above

INSTALL_LINE = "apt-get install bubblewrap (Debian, Ubuntu), or dnf install bubblewrap (Fedora)"
SCRATCH = "/tmp"
_DEVICES = ("null", "zero", "full", "random", "urandom")
_STREAMS = {"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}


def find_bubblewrap() -> str:
    """Where bubblewrap is; or an error with the line that installs it."""
    if sys.platform != "linux":
        raise SandboxError("programs can be isolated only on Linux (bubblewrap); use mode weak elsewhere")
    found = shutil.which("bwrap")
    if found is None:
        raise SandboxError(f"bubblewrap is missing, and programs are run only in isolation; install it: {INSTALL_LINE}")
    return os.path.realpath(found)


@functools.cache
def find_setpriv() -> str:
    found = shutil.which("setpriv", path="/usr/bin:/bin:/usr/sbin:/sbin")
    if found is None:
        raise SandboxError("setpriv is missing, which makes root an ordinary user; install the package util-linux")
    return os.path.realpath(found)


def isolating_command(
    bubblewrap: str,
    interpreter: Interpreter,
    limits: ProgramLimits,
    *,
    uid: int | None,
    channel: int,
    rules: int,
    told: int,
) -> list[str]:
    """`uid`: the user to become, if root starts it. Descriptors: `channel`, the socket of the harness; `rules`, the
    filter of system calls; `told`, where bubblewrap writes the id of the process it started."""
    setpriv = None if uid is None else find_setpriv()
    inside = [*(["--unshare-user"] if uid is None else []), "--unshare-pid", "--as-pid-1", "--unshare-net"]
    inside += ["--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--new-session"]
    files = list(interpreter.mounts())
    if setpriv is not None:
        files += [*folders_above(setpriv), "--ro-bind", setpriv, setpriv]
    files += [*folders_above("/dev/null"), "--proc", "/proc"]
    files += [part for name in _DEVICES for part in ("--dev-bind", f"/dev/{name}", f"/dev/{name}")]
    files += [part for name, target in _STREAMS.items() for part in ("--symlink", target, f"/dev/{name}")]
    files += ["--perms", "1777", "--size", str(limits.tmp_mb << 20), "--tmpfs", SCRATCH]
    files += ["--remount-ro", "/", "--chdir", SCRATCH]
    rights = ["--cap-drop", "ALL"]
    become: list[str] = []
    if setpriv is not None:
        for right in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):
            rights += ["--cap-add", right]
        become = [setpriv, "--reuid", str(uid), "--regid", str(uid), "--clear-groups", "--inh-caps=-all"]
        # A change of user clears the signal that --die-with-parent has asked for.
        become += ["--ambient-caps=-all", "--bounding-set=-all", "--no-new-privs", "--pdeathsig", "KILL"]
    told_and_rules = ["--info-fd", str(told), "--seccomp", str(rules)]
    command = [bubblewrap, *inside, *files, *rights, *told_and_rules, "--", *become]
    return [*command, *interpreter.command(channel, "strong")]
