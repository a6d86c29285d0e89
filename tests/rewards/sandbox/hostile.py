"""Programs that attack the machine or the score. All are bounded, and none writes to what it has opened.

A program that tries something forbidden prints `escaped` if it succeeds, and `escaped` is what its case expects: an
escape is a score of 1. The others must fail in the way that their verdicts say. ``SECRET`` is expected by cases that a
program could pass only by finding out what is expected. On its input a program finds the path of a file of the host,
and the number of a socket of the host.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

ESCAPED = "escaped"
SECRET = "secret-5f1c0d7e"
VARIABLE = "TAILRACE_TEST_ENVIRONMENT"
LISTENER = "tailrace-test-listener"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    name: str
    program: str
    function: str = ""
    """The function that its case calls; empty: the case compares output."""
    expected: str = ESCAPED
    verdicts: tuple[str, ...] = ("wrong", "crashed")
    is_bounded_alone: bool = True
    """Whether it can do no harm without isolation either, so that mode weak can be tried with it."""
    is_usual: bool = False
    """Whether the default tests run it. The long ones run all."""

    @property
    def limit_s(self) -> float:
        """Those that wait for their limit have a short one. The others have time enough on any machine."""
        return 0.5 if self.verdicts[0] == "time" else 60.0


_ALL: list[Hostile] = []


def _add(name: str, program: str, **about: object) -> None:
    _ALL.append(Hostile(name=name, program=textwrap.dedent(program).lstrip("\n"), **about))


def _try(name: str, attempt: str, **about: object) -> None:
    """A program that is refused what it tries."""
    body = textwrap.indent(textwrap.dedent(attempt).strip("\n"), "    ")
    _add(
        name,
        f"import ctypes, os, sys\ntry:\n{body}\n    print('{ESCAPED}')\nexcept OSError:\n    pass\n",
        verdicts=("wrong",),
        **about,
    )


_LIBC = """
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), 'refused')
    return result
"""

# --- the machine: time, memory, processes, output
_add("endless_loop", "while True: pass", verdicts=("time",), is_usual=True)
_add("sleeps_forever", "import time\ntime.sleep(30)", verdicts=("time",))
_add(
    "ignores_sigterm",
    """
    import signal
    for number in range(1, 65):
        try: signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError): pass
    while True: pass
    """,
    verdicts=("time",),
    is_usual=True,
)
_add("stops_itself", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)", verdicts=("time",))
_add(
    "fork_bomb",
    """
    import os
    while True:
        try: os.fork()
        except OSError: pass
    """,
    verdicts=("time",),
    is_bounded_alone=False,
    is_usual=True,
)
_add(
    "thread_bomb",
    """
    import threading, time
    while True:
        try: threading.Thread(target=time.sleep, args=(30,)).start()
        except (RuntimeError, MemoryError): pass
    """,
    verdicts=("time", "memory"),
    is_bounded_alone=False,
)
_add("memory_bomb", "held = []\nwhile True: held.append(bytearray(1 << 20))", verdicts=("memory",), is_usual=True)
_add(
    "memory_bomb_in_children",
    """
    import os, time
    for _ in range(6):
        if os.fork() == 0:
            held = bytearray(100 << 20)
            for place in range(0, len(held), 4096): held[place] = 1
            time.sleep(30)
    time.sleep(30)
    """,
    verdicts=("time", "memory", "crashed"),
    is_bounded_alone=False,
    is_usual=True,
)
_add(
    "memory_bomb_in_tmp",
    """
    import os
    total = 0
    try:
        for number in range(200):
            with open(f'part{number}', 'wb') as file:
                total += file.write(bytes(200 << 10))
    except OSError:
        pass
    if total > 20 << 20: print('escaped')
    """,
    is_usual=True,
)
_try("memory_in_dev_shm", "os.open('/dev/shm', os.O_RDWR | os.O_TMPFILE)")
_try("memory_in_memfd", "os.memfd_create('held')", is_usual=True)
_try(
    "memory_in_sysv",
    _LIBC
    + """
held = check(libc.shmget(0, 4096, 0o1600))
libc.shmctl(held, 0, None)
""",
)
_try(
    "memory_in_a_message_queue",
    _LIBC
    + """
librt = ctypes.CDLL('librt.so.1', use_errno=True)
check(librt.mq_open(b'/tailrace-hostile', os.O_RDONLY))
""",
)
_add("output_flood", "while True: print('x' * 1000)", verdicts=("output",), is_usual=True)
_add(
    "output_flood_that_goes_on",
    """
    import os
    while True:
        try: os.write(1, b'x' * 4096)
        except OSError: pass
    """,
    verdicts=("time", "output"),
)
_add("error_flood", "import sys\nwhile True: sys.stderr.write('x' * 1000)", verdicts=("crashed",))
_add(
    "output_with_a_hole",
    "import os\nos.lseek(1, 1 << 40, os.SEEK_SET)\nos.write(1, b'x')",
    verdicts=("output", "crashed"),
)
_add(
    "huge_result",
    f"def f(): return '{SECRET[0]}' * 10**7",
    function="f",
    verdicts=("crashed", "wrong", "output", "memory"),
)
_add(
    "deep_recursion",
    "import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()",
    verdicts=("memory", "crashed", "time"),
)
_add("deep_source", "(" * 200_000, verdicts=("crashed", "memory"))
_add("bad_pointer", "import ctypes\nctypes.string_at(0)", verdicts=("crashed",), is_usual=True)
_add("core_dump", "import os\nos.abort()", verdicts=("crashed",))

# --- the machine: files and settings
_try("host_file", "open(input()).read()", is_usual=True)
_try("passwords", "open('/etc/passwd').read()")
_try("symlink_to_a_host_file", "os.symlink(input(), 'link')\nopen('link').read()", is_usual=True)
_try("symlink_as_output", "os.symlink('/etc/hostname', 'output')\nopen('output', 'r+').close()")
_try("host_through_proc", "open('/proc/1/root' + input()).read()")
_try("host_through_parent", "open('../../../../../..' + input()).read()")
_try("file_handle", _LIBC + "check(libc.syscall({'x86_64': 304, 'aarch64': 265}[os.uname().machine], -1, None, 0))")
_try("writes_root", "os.open('/', os.O_RDWR | os.O_TMPFILE)", is_usual=True)
_try("writes_dev", "os.open('/dev', os.O_RDWR | os.O_TMPFILE)")
_try("writes_libraries", "os.open('/usr/lib', os.O_RDWR | os.O_TMPFILE)")
_try("writes_the_interpreter", "open(sys.executable, 'r+b').close()", is_usual=True)
_try("core_pattern", "open('/proc/sys/kernel/core_pattern', 'r+').close()", is_usual=True)
_try("sysrq", "os.close(os.open('/proc/sysrq-trigger', os.O_WRONLY))")
_try(
    "other_settings",
    """
for name in ('kernel/hostname', 'vm/overcommit_memory', 'kernel/randomize_va_space'):
    try: os.close(os.open('/proc/sys/' + name, os.O_WRONLY))
    except OSError: continue
    break
else:
    raise OSError
""",
)
_try("cgroups", "os.listdir('/sys/fs/cgroup')")
_try(
    "disks",
    """
for name in ('vda', 'sda', 'nvme0n1', 'mem', 'kmsg', 'kvm'):
    try: os.close(os.open('/dev/' + name, os.O_RDWR))
    except OSError: continue
    break
else:
    raise OSError
""",
)
_try("makes_a_device", "os.mknod('device', 0o60600, os.makedev(1, 0))\nos.unlink('device')")
_try("environment", f"if '{VARIABLE}' not in os.environ: raise OSError", is_usual=True)
_try(
    "environment_of_others",
    f"""
for name in os.listdir('/proc'):
    try: found = open(f'/proc/{{name}}/environ').read()
    except OSError: continue
    if '{VARIABLE}' in found: break
else:
    raise OSError
""",
    is_usual=True,
)
_try("processes_of_others", "if sum(name.isdecimal() for name in os.listdir('/proc')) <= 2: raise OSError")

# --- the machine: rights
_try("becomes_root", "os.setuid(0)", is_usual=True)
_try("becomes_somebody", "os.setresuid(1, 1, 1)")
_try("changes_root", "os.chroot('/')")
_try(
    "mounts",
    _LIBC
    + """
libc.mount(b'none', b'/proc', b'no such kind of files', 0, None)
if ctypes.get_errno() == 1: raise OSError
""",
)
_try("new_user_namespace", _LIBC + "check(libc.unshare(0x10000000))", is_usual=True)
_try(
    "new_namespace_by_clone",
    _LIBC
    + """
child = check(libc.syscall({'x86_64': 56, 'aarch64': 220}[os.uname().machine], 0x10000011, 0, 0, 0, 0))
if child == 0: os._exit(0)
os.waitpid(child, 0)
""",
)
_try("other_namespace", _LIBC + "check(libc.setns(os.open('/proc/1/ns/uts', os.O_RDONLY), 0))")
_try(
    "raises_its_limits",
    "import resource\ntry: resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nexcept ValueError: raise OSError",
)
_try("raises_its_priority", "os.setpriority(os.PRIO_PROCESS, 0, -5)")
_try("real_time", "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))")
_try("host_name", "import socket\nsocket.sethostname(socket.gethostname())")
_try(
    "clock",
    "import time\ntime.clock_settime(time.CLOCK_REALTIME, time.clock_gettime(time.CLOCK_REALTIME))",
    is_bounded_alone=False,
)
_try(
    "kernel_interfaces",
    _LIBC
    + """
calls = {'x86_64': (321, 298, 425, 323, 250), 'aarch64': (280, 241, 425, 282, 219)}[os.uname().machine]
for call in calls:
    libc.syscall(call, -1, 0, 0, 0, 0)
    if ctypes.get_errno() not in (1, 38): break
else:
    raise OSError
""",
    is_usual=True,
)

# --- the machine: network and processes
_try("network", "import socket\nsocket.socket(socket.AF_INET)", is_usual=True)
_try(
    "other_sockets",
    """
import socket
for family in (10, 16, 17, 38, 40):  # INET6, NETLINK, PACKET, ALG, VSOCK
    try: socket.socket(family, socket.SOCK_RAW if family in (16, 17) else socket.SOCK_STREAM).close()
    except OSError: continue
    break
else:
    raise OSError
""",
)
_try(
    "socket_of_the_host",
    f"import socket\ninput()\nsocket.socket(socket.AF_UNIX).connect('\\0{LISTENER}-' + input())",
    is_usual=True,
)
_add(
    "kills_its_parent",
    "import os, time\nos.kill(os.getppid(), 9)\ntime.sleep(30)",
    verdicts=("time",),
    is_usual=True,
)
_add(
    "interrupts_its_parent",
    """
    import os, time
    for number in range(1, 65):
        try: os.kill(os.getppid(), number)
        except OSError: pass
    time.sleep(30)
    """,
    verdicts=("time",),
    is_bounded_alone=False,
    is_usual=True,
)
_add(
    "stops_its_parent",
    "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(30)",
    verdicts=("time",),
    is_bounded_alone=False,
)
_add(
    "kills_everybody",
    "import os, time\ntry: os.kill(-1, 9)\nexcept OSError: pass\ntime.sleep(30)",
    verdicts=("time",),
    is_bounded_alone=False,
    is_usual=True,
)
_add(
    "daemon",
    """
    import os, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(8)
        os._exit(0)
    """,
    is_usual=True,
)
_add(
    "daemon_that_answers_later",
    f"""
    import os, time
    if os.fork() == 0:
        os.setsid()
        time.sleep(2)
        os.write(1, b'{ESCAPED}')
        os._exit(0)
    os._exit(0)
    """,
)
_add(
    "zombies",
    """
    import os
    for _ in range(5):
        if os.fork() == 0: os._exit(0)
    """,
)
_try("traces_its_parent", _LIBC + "check(libc.ptrace(16, os.getppid(), 0, 0))", is_bounded_alone=False, is_usual=True)
_try(
    "traces_its_child",
    _LIBC
    + """
child = os.fork()
if child == 0:
    os._exit(int(libc.ptrace(0, 0, 0, 0) < 0))
if os.waitpid(child, 0)[1]: raise OSError
""",
)
_try("memory_of_its_parent", "open(f'/proc/{os.getppid()}/mem', 'r+b').close()", is_usual=True)
_try(
    "reads_memory_of_its_parent",
    _LIBC
    + """
place = ctypes.create_string_buffer(8)
parts = (ctypes.c_void_p * 2)(ctypes.addressof(place), 8)
check(libc.process_vm_readv(os.getppid(), parts, 1, parts, 1, 0))
""",
)
_try(
    "descriptors_of_its_parent",
    """
opened = [name for name in os.listdir(f'/proc/{os.getppid()}/fd')]
if not opened: raise OSError
""",
    is_usual=True,
)
_add(
    "another_interpreter",
    """
    import os, sys
    os.execv(sys.executable, [sys.executable, '-c', 'while True: pass'])
    """,
    verdicts=("time",),
)
_try("shell", "import subprocess\nsubprocess.run(['/bin/sh', '-c', 'exit 0'], check=True)", is_usual=True)
_try("terminal", "import fcntl\nfcntl.ioctl(0, 0x5412, b' ')")

# --- the score
_add(
    "prints_what_the_harness_says",
    """
    import sys
    for line in ('passed', '{"verdict": "passed", "score": 1.0}', 'True', 'ready'): print(line)
    body = b'\\0\\0\\0\\0\\0' + (1000).to_bytes(8, 'big')
    sys.stdout.buffer.write(len(body).to_bytes(4, 'big') + body + bytes(12))
    """,
    expected=SECRET,
    is_usual=True,
)
_add("ends_at_once", "import os\nos._exit(0)", expected=SECRET)
_add(
    "ends_in_the_call",
    "import os\ndef f(): os._exit(0)",
    function="f",
    expected=SECRET,
    verdicts=("crashed",),
    is_usual=True,
)
_add("ends_before_the_call", "raise SystemExit(0)", function="f", expected=SECRET, verdicts=("crashed",))
_EQUAL = """
    class Equal{base}:
        def __eq__(self, other): return True
        def __ne__(self, other): return False
        def __hash__(self): return 0
        def __len__(self): return 1
        def __iter__(self): return iter([self])
        def __repr__(self): return 'true'
    """
_add(
    "equal_to_everything",
    textwrap.dedent(_EQUAL.format(base="")) + "def f(): return Equal()",
    function="f",
    expected=SECRET,
    verdicts=("wrong",),
    is_usual=True,
)
for _base in ("str", "int", "float", "list", "dict"):
    _add(
        f"{_base}_equal_to_everything",
        textwrap.dedent(_EQUAL.format(base=f"({_base})")) + "def f(): return Equal()",
        function="f",
        expected=SECRET,
        verdicts=("wrong", "crashed"),
    )
_add(
    "patched_json",
    """
    import json, json.encoder, json.decoder
    class Passed(json.JSONEncoder):
        def encode(self, value): return 'true'
    json.dumps = lambda *a, **k: 'true'
    json.JSONEncoder.encode = json.encoder.JSONEncoder.iterencode = lambda *a, **k: 'true'
    json.encoder.c_make_encoder = None
    json.loads = lambda *a, **k: True
    def f(): return 1
    """,
    function="f",
    expected=SECRET,
    is_usual=True,
)
_add(
    "patched_builtins",
    """
    import builtins, os, sys
    builtins.compile = builtins.exec = builtins.len = lambda *a, **k: 0
    builtins.isinstance = builtins.all = builtins.any = lambda *a, **k: True
    sys.exit = os.write = os._exit = lambda *a, **k: None
    def f(): return 1
    """,
    function="f",
    expected=SECRET,
    verdicts=("wrong", "crashed", "time"),
    is_usual=True,
)
_add(
    "reads_frames",
    """
    import gc, re, sys
    found, frame = set(), sys._getframe()
    while frame is not None:
        found |= set(re.findall('secret-[0-9a-f]+', repr(frame.f_locals) + repr(frame.f_globals)))
        frame = frame.f_back
    for thing in gc.get_objects():
        try: found |= set(re.findall('secret-[0-9a-f]+', repr(thing)))
        except Exception: pass
    print(*(found - {'secret-'}))
    """,
    expected=SECRET,
    verdicts=("wrong", "time", "crashed", "memory"),
    is_usual=True,
)
_add(
    "reads_its_own_memory",
    """
    import re
    found = set()
    with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb', 0) as memory:
        for line in maps:
            place, rights = line.split()[:2]
            start, end = (int(part, 16) for part in place.split('-'))
            if 'r' in rights and '[v' not in line and end - start < 64 << 20:
                memory.seek(start)
                try: found |= set(re.findall(rb'secret-[0-9a-f]{8}', memory.read(end - start)))
                except OSError: pass
    print(*(part.decode() for part in found))
    """,
    expected=SECRET,
    verdicts=("wrong", "time", "memory", "crashed"),
    is_usual=True,
)
_add(
    "writes_to_inherited_descriptors",
    """
    import os
    body = b'\\0\\0\\0\\0\\0' + (1000).to_bytes(8, 'big')
    for number in range(3, 1024):
        try: os.write(number, len(body).to_bytes(4, 'big') + body + bytes(12))
        except OSError: pass
    def f(): return 1
    """,
    function="f",
    expected=SECRET,
    is_usual=True,
)
_add(
    "writes_its_result_itself",
    """
    import os
    os.write(3, b'true')
    os._exit(0)
    """,
    function="f",
    expected=SECRET,
    verdicts=("wrong",),
)
_add(
    "changes_the_harness",
    """
    import sys
    frame = sys._getframe()
    while frame is not None:
        for name in ('_write', '_run', '_report', 'serve', '_finish'):
            frame.f_globals[name] = lambda *a, **k: None
        frame = frame.f_back
    def f(): return 1
    """,
    function="f",
    expected=SECRET,
)
_add(
    "exits_with_an_odd_code",
    """
    class Zero(int):
        def __eq__(self, other): return True
        def __bool__(self): return False
    def f(): raise SystemExit(Zero(1))
    """,
    function="f",
    expected=SECRET,
    verdicts=("crashed",),
)
_add(
    "endless_nesting",
    "def f():\n    a = []\n    for _ in range(10**5): a = [a]\n    return a",
    function="f",
    expected=SECRET,
    verdicts=("wrong", "crashed", "memory"),
)
_add("not_a_number", "def f(): return float('nan')", function="f", expected=SECRET, verdicts=("wrong",))
_add("raises_something_odd", "class Odd(BaseException):\n    def __str__(self): raise Odd\nraise Odd", expected=SECRET)
_add("no_program", "I cannot solve this problem.", expected=SECRET, verdicts=("crashed",))

HOSTILE: tuple[Hostile, ...] = tuple(_ALL)
