"""A name for what a function does, the same in every process.

A pickle will not do: the order of a set in it changes with the process, and a notebook's functions carry the number of
their kernel. The name is that of the code itself, with nested functions, constants and default values; where it stands
and what it refers to by name are not part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import CodeType
from typing import Any

_LENGTH = 12


def function_name(function: Callable[..., Any]) -> str:
    target: Any = function
    while hasattr(target, "func"):  # functools.partial
        target = target.func
    if not hasattr(target, "__code__"):
        target = vars(type(target)).get("__call__", target)
    code = getattr(target, "__code__", None)
    told = _tell(code) if isinstance(code, CodeType) else type(function).__qualname__
    defaults = _tell((getattr(target, "__defaults__", None), getattr(target, "__kwdefaults__", None)))
    return hashlib.sha256(f"{told}{defaults}".encode()).hexdigest()[:_LENGTH]


def _tell(value: Any) -> str:
    if isinstance(value, CodeType):
        parts = (value.co_code, value.co_names, value.co_varnames, value.co_freevars)
        return f"code({parts!r},{_tell(value.co_consts)})"
    if isinstance(value, frozenset | set):
        return f"set({sorted(_tell(item) for item in value)})"
    if isinstance(value, tuple | list):
        return f"({','.join(_tell(item) for item in value)})"
    if isinstance(value, dict):
        return f"{{{','.join(f'{_tell(key)}:{_tell(item)}' for key, item in value.items())}}}"
    is_plain = value is None or isinstance(value, bool | int | float | complex | str | bytes)
    return repr(value) if is_plain else type(value).__qualname__
