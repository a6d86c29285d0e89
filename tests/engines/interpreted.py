"""Import this in tests of Triton kernels that run on the CPU, in Triton's interpreter (`tests/conftest.py`).

On a machine with a GPU the kernels are compiled, and `tests/gpu` tests them there.
"""

from __future__ import annotations

import os

import pytest

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels are compiled here: tests/gpu tests them", allow_module_level=True)
