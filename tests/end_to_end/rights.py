"""Takes the superuser's right to ignore file permissions away for a while.

The user stays the same: what belongs to it stays readable, and what it may not read or write is refused, as it would be
to anybody else. Another user would not do: it may have no way into the checkout or into the tests' directories.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_VERSION_3 = 0x20080522
_IGNORE_PERMISSIONS = (1 << 1) | (1 << 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Capabilities(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


@contextmanager
def held_to_permissions() -> Iterator[None]:
    """File permissions bind this thread, whoever runs it."""
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("nothing is forbidden to the superuser here")
    before = _capabilities()
    _set_effective([before[0].effective & ~_IGNORE_PERMISSIONS, before[1].effective])
    try:
        yield
    finally:
        _set_effective([part.effective for part in before])


def _capabilities() -> ctypes.Array[_Capabilities]:
    """The lower and the upper 32 capabilities of this thread."""
    found = (_Capabilities * 2)()
    _call("capget", found)
    return found


def _set_effective(parts: list[int]) -> None:
    wanted = _capabilities()
    for part, effective in zip(wanted, parts, strict=True):
        part.effective = effective
    _call("capset", wanted)


def _call(name: str, capabilities: ctypes.Array[_Capabilities]) -> None:
    header = _Header(version=_VERSION_3, pid=0)
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(ctypes.byref(header), capabilities) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
