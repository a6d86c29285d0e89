"""Fixtures for tests that compare the paged runner with the plain one. A test module gives ``device``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.rollouts import save_random_model, small_llama
from tailrace.engines.native.engine import NativeEngine
from tailrace.engines.native.limits import Decoding, EngineLimits


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    save_random_model(folder, small_llama(head_dim=16))
    return folder


def _maker(model: Path, device: str, decoding: Decoding) -> Callable[..., NativeEngine]:
    def make(
        *,
        max_running: int = 8,
        max_length: int = 160,
        kv_tokens: int | None = None,
        prefill_chunk: int = 512,
        **options: Any,
    ) -> NativeEngine:
        limits = EngineLimits(
            max_running=max_running, max_length=max_length, kv_tokens=kv_tokens, prefill_chunk=prefill_chunk
        )
        options.setdefault("may_release", True)  # so that release and restore are tested where they are hardest
        return NativeEngine(model, seed=0, limits=limits, device=device, decoding=decoding, **options)

    return make


@pytest.fixture
def make_paged(small_model: Path, device: str) -> Callable[..., NativeEngine]:
    return _maker(small_model, device, Decoding.PAGED)


@pytest.fixture
def make_plain(small_model: Path, device: str) -> Callable[..., NativeEngine]:
    return _maker(small_model, device, Decoding.PLAIN)
