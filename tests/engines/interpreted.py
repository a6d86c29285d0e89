"""Import this in tests of Triton kernels that run on the CPU, in Triton's interpreter (`tests/conftest.py`).

On a machine with a GPU the kernels are compiled, and `tests/gpu` tests them there.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels are compiled here: tests/gpu tests them", allow_module_level=True)


def _patch_once() -> None:
    """Let the interpreter look for the functions that it replaces once for each kernel that is started.

    It also looks at each call of a function inside the kernel (`tl.max`, ...), which takes half of the time. What a
    kernel sees then has been replaced already.
    """
    from triton import language
    from triton.runtime import interpreter

    search = interpreter._patch_lang

    def search_where_needed(function: Any) -> Any:
        seen = [each for each in (language, language.core) if any(each is one for one in function.__globals__.values())]
        is_done = not any(language.core.is_builtin(each.load) for each in seen)
        return interpreter._LangPatchScope() if is_done else search(function)

    interpreter._patch_lang = search_where_needed


_patch_once()
