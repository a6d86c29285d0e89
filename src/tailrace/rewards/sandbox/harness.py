"""What runs inside a sandbox: an interpreter that is loaded once and forks for each case.

    outside ---socket--- harness (process 1 of the sandbox) --- one child for each case: the program

It tells what the program wrote or returned, how it ended and how long it took, and never a verdict: what is expected is
not known here. A program shares its process with the code below `_become_program`, so what comes out of that process is
an answer that it claims, and nothing else. When a case ends, all processes that it left are killed, and `/tmp` is
emptied.

It is sent through the socket and run by an interpreter that has nothing but the standard library. It imports little, so
that a sandbox starts quickly. A frame is four bytes that say its length, and then its bytes.
"""

from __future__ import annotations

import gc
import marshal
import os
import resource
import select
import sys
import time

TYPE_CHECKING = False  # importing `typing` would take longer than starting the interpreter
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
    from typing import Any
else:
    import _signal  # `signal` makes enumerations, which takes as long

_PR_SET_DUMPABLE = 4
EXIT_MEMORY, EXIT_NOT_JSON = 86, 87
"""How a program ends that ran out of memory, or whose function returned what JSON cannot express."""
_RESULT = 3
"""Descriptor to which a program's process writes what its function returned."""
_TAIL_BYTES = 600
_MEGABYTE = 1 << 20


def serve(channel: int, is_strong: bool) -> None:
    """Answer one case after the other, until the other side closes the channel."""
    _keep_only(channel)
    if is_strong:
        _hide_memory()
    ended = _hear_of_ends()
    _send(channel, ascii(_about_itself()).encode())
    settings = _literal(_receive(channel))
    is_alone = is_strong and os.getpid() == 1
    _limit(resource.RLIMIT_CORE, 1)  # 0 would still start a handler that the host may have set
    if is_alone:
        _limit(resource.RLIMIT_NPROC, settings["processes"] + 1)
    namespace = _namespace(settings["modules"], settings["names"], settings["has_calls"])
    program = _receive(channel)
    compiled = _scratch_file(settings["scratch"])
    compile("0", "program.py", "exec")  # the first call prepares a lot, which the children then share
    gc.freeze()  # collecting would write to all objects, and so copy them
    _send(channel, b"ready")
    code = b""
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(channel, 0)  # its end is told without asking; the next case may wait in it
    while True:
        function, limit_s, until = _receive(channel).decode().split("\n")
        body = _receive(channel)
        files = [_scratch_file(settings["scratch"]) for _ in range(4)]
        _write(files[0], body)
        os.lseek(files[0], 0, os.SEEK_SET)
        started = time.monotonic()
        end = min(started + float(limit_s), float(until))
        child = os.fork()
        if child == 0:
            _become_program(program, code, namespace, function, [*files, compiled], settings, channel, ended)
        status = _wait(child, end, poll, channel)
        seconds = time.monotonic() - started
        is_cut = status is None
        status = _kill_rest(child, status, is_alone)
        _report(channel, files, settings["output_bytes"], status=status, seconds=seconds, is_cut=is_cut)
        code = code or _read(compiled, _MEGABYTE)
        for file in files:
            os.close(file)
        if is_alone:
            _empty(settings["scratch"])


def _keep_only(channel: int) -> None:
    """Close what was inherited. Input and output go nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    os.closerange(3, channel)
    os.closerange(channel + 1, 1 << 16)
    os.set_inheritable(channel, False)


def _hide_memory() -> None:
    """Let no process of this user read or change the memory of this one. Programs inherit it."""
    import _ctypes

    _ctypes.call_function(_ctypes.dlsym(_ctypes.dlopen("", 0), "prctl"), (_PR_SET_DUMPABLE, 0, 0, 0, 0))


def _hear_of_ends() -> int:
    """A descriptor that can be read when a child has ended."""
    told, tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
    os.set_blocking(tell, False)
    os.set_blocking(told, False)
    _signal.signal(_signal.SIGCHLD, lambda number, frame: None)
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)  # process 1 gets from its programs what it has a handler for
    _signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    return told


def _about_itself() -> dict[str, Any]:
    about: dict[str, Any] = {"pid": os.getpid(), "uid": os.getuid()}
    if sys.platform == "linux":
        with open("/proc/self/status", "rb") as file:
            lines = file.read().decode().splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        for name in ("CapEff", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp"):
            about[name] = int(fields[name].strip(), 16)
    return about


def _namespace(modules: list[str], names: list[tuple[str, str]], has_calls: bool) -> dict[str, Any]:
    """What a program finds defined: modules that it names are loaded, so that no case pays for it."""
    import builtins

    builtins_: Any = builtins
    builtins_.exit = builtins_.quit = sys.exit
    namespace: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins}
    for module in (*modules, *(["json"] if has_calls else [])):
        try:
            __import__(module)
        except ImportError:
            continue
    for module, name in names:
        namespace[name or module] = getattr(__import__(module), name) if name else __import__(module)
    return namespace


def _scratch_file(folder: str) -> int:
    if hasattr(os, "O_TMPFILE"):
        return os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    path = os.path.join(folder, f"case-{time.monotonic_ns()}")
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)
    return file


def _become_program(
    program: bytes,
    code: bytes,
    namespace: dict[str, Any],
    function: str,
    files: list[int],
    settings: dict[str, Any],
    channel: int,
    ended: int,
) -> None:
    """Run the program in this process, and end the process."""
    try:
        _signal.set_wakeup_fd(-1)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
        _signal.signal(_signal.SIGINT, _signal.default_int_handler)
        os.close(channel)
        os.close(ended)
        os.setpgid(0, 0)
        for number in (0, 1, 2):
            os.dup2(files[number], number)
        os.dup2(files[3], _RESULT, inheritable=False)
        _limit(resource.RLIMIT_AS, settings["memory_mb"] * _MEGABYTE)
        os.chdir(settings["scratch"])
        loaded = _load(program, code, files[4])
        os.closerange(_RESULT + 1, 256)
        _limit(resource.RLIMIT_FSIZE, settings["output_bytes"] + 1)
        _limit(resource.RLIMIT_NOFILE, settings["open_files"])
        os._exit(_run(loaded, namespace, function))
    finally:
        os._exit(70)


def _load(program: bytes, code: bytes, compiled: int) -> Any:
    """The compiled program, or the error in it. The first child compiles it, and leaves the code for the next ones:
    what they load can do no more than the program itself."""
    try:
        if code:
            return marshal.loads(code)
    except (EOFError, ValueError, TypeError):  # the first child was killed while it wrote
        pass
    try:
        loaded = compile(program, "program.py", "exec", dont_inherit=True)
        _write(compiled, marshal.dumps(loaded))
    except BaseException as error:  # noqa: BLE001  the text may be anything
        return error
    return loaded


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _run(program: Any, namespace: dict[str, Any], function: str) -> int:
    """Run a compiled program and return its exit code."""
    module = type(sys)("__main__")
    module.__dict__.update(namespace)
    sys.modules["__main__"] = module
    sys.argv = ["program.py"]
    call = _prepare_call(function) if function else None
    try:
        if isinstance(program, BaseException):
            raise program
        exec(program, module.__dict__)
        if call is not None:
            call(module.__dict__)
        _finish()
    except SystemExit as error:
        _finish()
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except MemoryError:
        return EXIT_MEMORY
    except BaseException:  # noqa: BLE001  whatever a program raises is told like an interpreter tells it
        sys.excepthook(*sys.exc_info())
        sys.stdout.flush()
        return 1
    return 0


def _prepare_call(name: str) -> Callable[[dict[str, Any]], None]:
    """What calls the function and writes what it returned. All that it needs is taken before the program runs."""
    import json

    arguments = json.loads(sys.stdin.buffer.read())
    encode = json.JSONEncoder(ensure_ascii=True, check_circular=True).encode

    def call(defined: dict[str, Any]) -> None:
        function = defined.get(name)
        if function is None and "Solution" in defined:
            function = getattr(defined["Solution"](), name)
        if function is None:
            raise NameError(f"the program defines no function {name!r}")
        value = function(*arguments)
        try:
            text = encode(value)
        except (TypeError, ValueError, RecursionError):
            sys.excepthook(*sys.exc_info())
            os._exit(EXIT_NOT_JSON)
        _write(_RESULT, text.encode())

    return call


def _finish() -> None:
    """What an interpreter does at its end: wait for threads, call what was registered, write what is buffered."""
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    if "atexit" in sys.modules:
        sys.modules["atexit"]._run_exitfuncs()
    sys.stdout.flush()


def _wait(child: int, until: float, poll: select.poll, channel: int) -> int | None:
    """How the child ended; None if it did not in time. If the other side is gone, so is everything here."""
    # Sleep at once: while the child lives, every page that is written to here must be copied first.
    while (left := until - time.monotonic()) > 0:
        for file, _ in poll.poll(left * 1000 + 1):
            if file == channel:
                os._exit(0)
            os.read(file, 4096)
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return status
    return None


def _kill_rest(child: int, status: int | None, is_alone: bool) -> int:
    """Kill the child, if it still runs, and what it has left. Return how the child ended."""
    if not is_alone:
        _kill_group(child)
        if status is None:  # it may not have become the leader of its group yet
            os.kill(child, _signal.SIGKILL)
    while True:
        try:
            found, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            assert status is not None
            return status
        if found == 0:
            if is_alone:
                os.kill(-1, _signal.SIGKILL)  # process 1 of a process namespace: there is nobody else in it
            found, ended = os.waitpid(-1, 0)
        if found == child:
            status = ended


def _kill_group(leader: int) -> None:
    try:  # noqa: SIM105  contextlib takes long to import
        os.killpg(leader, _signal.SIGKILL)
    except OSError:  # nobody is in it
        pass


def _report(channel: int, files: list[int], most: int, *, status: int, seconds: float, is_cut: bool) -> None:
    size = os.fstat(files[1]).st_size
    flags = is_cut | (size > most) << 1
    code = os.waitstatus_to_exitcode(status)
    head = code.to_bytes(4, "big", signed=True) + bytes([flags]) + int(seconds * 1e6).to_bytes(8, "big")
    output = b"" if size > most else _read(files[1], most)
    # In one go: every part would wake the other side up.
    _send(channel, head, _read(files[2], _TAIL_BYTES, from_end=True), output, _read(files[3], most))


def _read(file: int, most: int, *, from_end: bool = False) -> bytes:
    size = os.fstat(file).st_size
    os.lseek(file, max(0, size - most) if from_end else 0, os.SEEK_SET)
    parts, left = [], min(size, most)
    while left and (part := os.read(file, left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _empty(folder: str) -> None:
    for name in os.listdir(folder):
        path = f"{folder}/{name}"
        if os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, 0o700)
            _empty(path)
            os.rmdir(path)
        else:
            os.unlink(path)


def _literal(data: bytes) -> Any:
    """A value that the other side wrote with ``ascii``. It is trusted: it comes from outside."""
    return eval(data, {"__builtins__": {}})


_unread = bytearray()
"""What has come through the channel and was not asked for yet."""


def _receive(channel: int) -> bytes:
    return _receive_bytes(channel, int.from_bytes(_receive_bytes(channel, 4), "big"))


def _receive_bytes(channel: int, count: int) -> bytes:
    while len(_unread) < count:
        part = os.read(channel, _MEGABYTE)
        if not part:
            os._exit(0)
        _unread.extend(part)
    data = bytes(_unread[:count])
    del _unread[:count]
    return data


def _send(channel: int, *frames: bytes) -> None:
    _write(channel, b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames))


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
