"""The judge that a run will start, as far as its memory matters: its shape and its profile, from their files."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.config.judge_use import num_judge_models
from tailrace.config.settings import Settings
from tailrace.data.models import resolve_model
from tailrace.sizing.judge_memory import JudgeLoad, judge_load
from tailrace.sizing.known_shapes import known_shape
from tailrace.sizing.model_shape import ModelShape
from tailrace.sizing.offload_profile_file import read_profile


def shape_of(name: str) -> ModelShape:
    """Known by the name, or read from the model's files, which may be downloaded."""
    return known_shape(name) or ModelShape.read(resolve_model(name))


def find_judge(settings: Settings, *, is_cuda: bool, find: Callable[[str], ModelShape] = shape_of) -> JudgeLoad | None:
    """None if the run starts no judge. ``OSError`` or ``ValueError`` if its sizes or its profile cannot be read."""
    judge = settings.reward.judge
    if judge.model is None or not num_judge_models(settings):
        return None
    measured = None
    if judge.profile is not None:
        dtype = judge.dtype or settings.model.dtype
        measured = read_profile(judge.profile, model=judge.model, dtype=dtype, is_cuda=is_cuda)
    return judge_load(settings, find(judge.model), measured, is_cuda=is_cuda)
