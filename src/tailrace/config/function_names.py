"""A fingerprint of a function's code that is the same in every process.

A pickle would not be: the order of a set in it changes from process to process, and functions of a notebook contain the
number of their kernel. The fingerprint covers the code, nested functions, constants and default values. It does not
cover where the function is defined, nor what the names in it refer to.
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
