"""Measures what a pass needs, for sequences of some lengths: memory, seconds of a layer, seconds of a copy."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import torch

from tailrace.judge.model import JudgeModel
from tailrace.judge.questions import Question
from tailrace.sizing.resident_layers import LengthPoint, OffloadProfile

LENGTHS = (1024, 4096, 16384, 32768)
_REPEATS = 3


def measure_profile(
    model: JudgeModel, lengths: Sequence[int] = LENGTHS, *, budget_bytes: int | None = None
) -> OffloadProfile:
    """The profile of a model on its device, measured with no layer resident. Lengths are left out that the model cannot
    read, for which memory is too short, or that would exceed the budget as far as the shorter ones tell."""
    before = model.offload.num_resident
    model.offload.keep(0)
    points: list[LengthPoint] = []
    for length in [each for each in lengths if each <= model.max_length] or [model.max_length]:
        if points and budget_bytes is not None and _needed_bytes(model, points, length) > budget_bytes:
            break
        try:
            points.append(_measure(model, length))
        except torch.OutOfMemoryError:
            if not points:
                raise
            break
    copy_s = _timed(model, model.offload.copy_first_layer)
    model.offload.keep(before)
    return _profile(model, points, copy_s)


def _profile(model: JudgeModel, points: Sequence[LengthPoint], copy_s: float) -> OffloadProfile:
    return OffloadProfile(
        num_layers=model.offload.num_layers,
        layer_bytes=model.offload.layer_bytes,
        outside_bytes=model.outside_bytes,
        held_bytes=model.decoder.held_bytes,
        copy_s=copy_s,
        points=tuple(points),
    )


def _needed_bytes(model: JudgeModel, points: Sequence[LengthPoint], length: int) -> int:
    return _profile(model, points, copy_s=0.0).device_bytes(0, longest=length, num_tokens=length)


def _measure(model: JudgeModel, length: int) -> LengthPoint:
    tokens = (np.arange(length) % model.vocab_size).astype(np.int32)
    question = Question.about_the_end(tokens, tokens[:2])

    def compute() -> object:
        return model.rewards([tokens]) if model.has_reward_head else model.logprobs([question])

    compute()  # kernels are loaded and chosen now
    needed = _peak_bytes(model.device, compute)
    [states] = model.decoder.states([torch.from_numpy(tokens[:length]).long().to(model.device)])
    layer_s = _timed(model, lambda: model.decoder.run_first_layer(states))
    working_bytes = max(0, needed - length * model.decoder.held_bytes)
    return LengthPoint(length=length, working_bytes=working_bytes, layer_s=layer_s)


def _timed(model: JudgeModel, work: Callable[[], object]) -> float:
    """Seconds on the device: the median of some calls."""
    found = []
    for number in range(_REPEATS + 1):
        synchronize(model.device)
        start = time.perf_counter()
        work()
        synchronize(model.device)
        if number:  # the first one warms up
            found.append(time.perf_counter() - start)
    return median(found)


def _peak_bytes(device: torch.device, work: Callable[[], object]) -> int:
    """Most bytes that torch allocates on the device on top of what there is; 0 on a CPU, where torch does not tell."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    return int(torch.cuda.max_memory_allocated(device) - before)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
