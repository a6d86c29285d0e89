"""The seccomp filter of a sandbox: a program in the kernel's BPF, made of bytes by hand.

What is refused fails with EPERM. Two things are different: `clone3` fails with ENOSYS, so that the C library uses
`clone`, whose flags a filter can read; a call in the convention of another architecture kills the process.
Everything that is not named is allowed: the program has no rights besides this filter.
"""

from __future__ import annotations

import errno
import functools
import struct
from collections.abc import Mapping
from dataclasses import dataclass

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16
_AF_UNIX = 1
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
_TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: they put characters into the input of a terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallNumbers:
    audit_id: int
    calls: Mapping[str, int]
    """Numbers of the system calls that the filter knows."""
    has_second_convention: bool = False
    """x86-64: call numbers above 2**30 mean the same calls (x32)."""


REFUSED = (
    # other processes
    "ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp",
    # namespaces and mounts
    "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree", "fsopen", "fsconfig",
    "fsmount", "fspick", "mount_setattr", "name_to_handle_at", "open_by_handle_at",
    # memory that no limit counts
    "memfd_create", "memfd_secret", "shmget", "shmat", "shmctl", "semget", "semop", "semctl", "msgget", "msgsnd",
    "msgrcv", "msgctl", "mq_open", "mq_unlink",
    # parts of the kernel that no program of a test needs
    "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "add_key",
    "request_key", "keyctl", "fanotify_init", "fanotify_mark", "syslog", "personality", "lookup_dcookie", "quotactl",
    "acct", "swapon", "swapoff", "reboot", "kexec_load", "kexec_file_load", "init_module", "finit_module",
    "delete_module", "settimeofday", "clock_settime", "adjtimex", "clock_adjtime", "sethostname", "setdomainname",
    "vhangup", "nfsservctl", "move_pages", "migrate_pages", "remap_file_pages", "modify_ldt", "iopl", "ioperm",
    "uselib", "ustat", "sysfs",
)  # fmt: skip

_SHARED = {
    "pidfd_getfd": 438, "move_mount": 429, "open_tree": 428, "fsopen": 430, "fsconfig": 431, "fsmount": 432,
    "fspick": 433, "mount_setattr": 442, "memfd_secret": 447, "io_uring_setup": 425, "io_uring_enter": 426,
    "io_uring_register": 427, "clone3": 435,
}  # fmt: skip
"""Calls that are newer than the two architectures have the same number on both."""

ARCHITECTURES = {
    "aarch64": CallNumbers(
        audit_id=0xC00000B7,
        calls=_SHARED
        | {
            "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "unshare": 97, "setns": 268,
            "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "name_to_handle_at": 264,
            "open_by_handle_at": 265, "memfd_create": 279, "shmget": 194, "shmctl": 195, "shmat": 196, "semget": 190,
            "semctl": 191, "semop": 193, "msgget": 186, "msgctl": 187, "msgrcv": 188, "msgsnd": 189, "mq_open": 180,
            "mq_unlink": 181, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "add_key": 217,
            "request_key": 218, "keyctl": 219, "fanotify_init": 262, "fanotify_mark": 263, "syslog": 116,
            "personality": 92, "lookup_dcookie": 18, "quotactl": 60, "acct": 89, "swapon": 224, "swapoff": 225,
            "reboot": 142, "kexec_load": 104, "kexec_file_load": 294, "init_module": 105, "finit_module": 273,
            "delete_module": 106, "settimeofday": 170, "clock_settime": 112, "adjtimex": 171, "clock_adjtime": 266,
            "sethostname": 161, "setdomainname": 162, "vhangup": 58, "nfsservctl": 42, "move_pages": 239,
            "migrate_pages": 238, "remap_file_pages": 234, "clone": 220, "socket": 198, "ioctl": 29,
        },
    ),
    "x86_64": CallNumbers(
        audit_id=0xC000003E,
        has_second_convention=True,
        calls=_SHARED
        | {
            "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "unshare": 272,
            "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "name_to_handle_at": 303,
            "open_by_handle_at": 304, "memfd_create": 319, "shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64,
            "semop": 65, "semctl": 66, "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240,
            "mq_unlink": 241, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "add_key": 248,
            "request_key": 249, "keyctl": 250, "fanotify_init": 300, "fanotify_mark": 301, "syslog": 103,
            "personality": 135, "lookup_dcookie": 212, "quotactl": 179, "acct": 163, "swapon": 167, "swapoff": 168,
            "reboot": 169, "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313,
            "delete_module": 176, "settimeofday": 164, "clock_settime": 227, "adjtimex": 159, "clock_adjtime": 305,
            "sethostname": 170, "setdomainname": 171, "vhangup": 153, "nfsservctl": 180, "move_pages": 279,
            "migrate_pages": 256, "remap_file_pages": 216, "modify_ldt": 154, "iopl": 172, "ioperm": 173,
            "uselib": 134, "ustat": 136, "sysfs": 139, "clone": 56, "socket": 41, "ioctl": 16,
        },
    ),
}  # fmt: skip


@functools.cache
def filter_bytes(machine: str) -> bytes:
    """The filter for this machine (`platform.machine()`); `ValueError` for one that is not known."""
    if machine not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"there is no filter of system calls for the machine {machine!r} (known: {known})")
    return b"".join(_instructions(ARCHITECTURES[machine]))


def _instructions(architecture: CallNumbers) -> list[bytes]:
    calls, refuse = architecture.calls, _answer(_FAIL | errno.EPERM)
    program = [_load(_ARCHITECTURE_AT), _skip_if(_EQUAL, architecture.audit_id, 1), _answer(_KILL), _load(_NUMBER_AT)]
    if architecture.has_second_convention:
        program += [_skip_unless(_AT_LEAST, 1 << 30, 1), _answer(_KILL)]
    for name in REFUSED:
        if name in calls:
            program += [_skip_unless(_EQUAL, calls[name], 1), refuse]
    program += [_skip_unless(_EQUAL, calls["clone3"], 1), _answer(_FAIL | errno.ENOSYS)]
    program += _with_argument(calls["clone"], 0, [_skip_unless(_ANY_BIT, _NEW_NAMESPACES, 1), refuse])
    program += _with_argument(calls["socket"], 0, [_skip_if(_EQUAL, _AF_UNIX, 1), refuse])
    requests = [part for code in _TERMINAL_INPUT for part in (_skip_unless(_EQUAL, code, 1), refuse)]
    program += _with_argument(calls["ioctl"], 1, requests)
    return [*program, _answer(_ALLOW)]


def _with_argument(call: int, argument: int, checks: list[bytes]) -> list[bytes]:
    """Check an argument (its lower half) of one call; the call is allowed if no check refuses it."""
    body = [_load(_ARGUMENTS_AT + 8 * argument), *checks, _answer(_ALLOW)]
    return [_skip_unless(_EQUAL, call, len(body)), *body]


def _load(offset: int) -> bytes:
    return _instruction(_LOAD, 0, 0, offset)


def _answer(action: int) -> bytes:
    return _instruction(_RETURN, 0, 0, action)


def _skip_if(condition: int, value: int, count: int) -> bytes:
    return _instruction(condition, count, 0, value)


def _skip_unless(condition: int, value: int, count: int) -> bytes:
    return _instruction(condition, 0, count, value)


def _instruction(code: int, if_true: int, if_false: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
