"""The memory of a judge's process: on its device, and of offloaded layers in main memory. Arithmetic only.

Without a measured profile it is estimated from the shape. D hidden width, Q and K widths of all query and key heads.
A pass computes one sequence at a time, and at its worst moment holds, for each token of it, beside the held state:

    attention   2 D + 2 Q + 2 K    normed state, queries, keys, values, what attention found, and its projection
    MLP         3 D                state, normed state, output; and three times the inner width for the tokens of a tile
    reading     none               two parts of the output embedding in fp32

``tests/sizing/test_judge_memory.py`` compares this with what torch really allocates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tailrace.config.run_preset import HALF
from tailrace.config.settings import Settings
from tailrace.sizing.model_shape import ModelShape
from tailrace.sizing.parts import MemoryPart, ProcessMemory, context
from tailrace.sizing.resident_layers import LengthPoint, OffloadProfile, longest_pack

TILE = 2048
"""Tokens that an MLP computes at a time (``judge/token_tiles.py``)."""
WEIGHTS_PER_PART = 2**25
"""Numbers of the output embedding that are in fp32 at the same time (``judge/readings.py``)."""
_FP32 = 4
_LONGEST = 2**20
"""Tokens up to which the estimate holds."""
_GIB = 2**30
_ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeLoad:
    """One judge, and the most that it is asked at a time."""

    profile: OffloadProfile
    is_estimated: bool
    """Whether the profile follows from the shape, and was not measured."""
    longest: int
    """Tokens of the longest text that it reads."""
    pass_tokens: int
    """Most tokens of a pass."""
    budget_bytes: int | None = None
    """Memory of its device that it may take; None: all layers are resident."""
    is_packed: bool = False
    """Whether it computes short texts side by side."""

    @property
    def all_bytes(self) -> int:
        """Weights and a pass, with all layers resident."""
        return self._pass_bytes(self.profile.num_layers)

    @property
    def half_bytes(self) -> int:
        """The same with half of the layers resident."""
        return self._pass_bytes(self.profile.num_layers // 2)

    @property
    def device_bytes(self) -> int:
        """Weights and a pass, as far as the judge may take memory."""
        return self.all_bytes if self.budget_bytes is None else min(self.budget_bytes, self.all_bytes)

    @property
    def host_bytes(self) -> int:
        """Layers in page-locked memory of the host: all of them, because a judge with a budget begins with none on its
        device."""
        return 0 if self.budget_bytes is None else self.profile.num_layers * self.profile.layer_bytes

    def refusal(self) -> str | None:
        """Why the budget is too small for the longest text; None if it is not."""
        least = self._bytes(0, self.longest, self.longest)
        if self.budget_bytes is None or least <= self.budget_bytes:
            return None
        return (
            f"reward.judge.memory_gb is {self.budget_bytes / _GIB:g}, and the judge needs about {least / _GIB:.1f} GiB"
            f" for a text of {self.longest:,} tokens with all of its layers in main memory ({self.source})"
        )

    @property
    def source(self) -> str:
        return "estimated" if self.is_estimated else "as measured"

    def _pass_bytes(self, num_resident: int) -> int:
        num_tokens = max(self.longest, self.pass_tokens)
        span = longest_pack(self.longest, num_tokens, is_packed=self.is_packed)
        return self._bytes(num_resident, span, num_tokens)

    def _bytes(self, num_resident: int, longest: int, num_tokens: int) -> int:
        return self.profile.device_bytes(num_resident, longest=longest, num_tokens=num_tokens)


def judge_load(
    settings: Settings, shape: ModelShape, measured: OffloadProfile | None = None, *, is_cuda: bool = False
) -> JudgeLoad:
    """``shape``: of the judge. ``measured``: the profile that the settings name."""
    judge = settings.reward.judge
    itemsize = _ITEM_BYTES[judge.dtype or settings.model.dtype]
    estimated = estimated_profile(shape, itemsize, has_reward_head=not judge.answers)
    # The template at its longest: each of its characters is a token.
    template = len(judge.prompt) + len(judge.reply)
    load = JudgeLoad(
        profile=estimated if measured is None else with_estimated_passes(measured, estimated),
        is_estimated=measured is None or not any(point.working_bytes for point in measured.points),
        longest=settings.data.max_prompt_length + settings.rollout.max_response_length + template,
        pass_tokens=judge.max_pass_tokens,
        is_packed=is_cuda and not judge.deterministic,
    )
    return replace(load, budget_bytes=_budget(load, judge.memory_gb))


def _budget(load: JudgeLoad, memory_gb: float | str | None) -> int | None:
    if memory_gb == HALF:
        return load.half_bytes
    return None if memory_gb is None else int(float(memory_gb) * _GIB)


def judge_memory(load: JudgeLoad, *, count: int, is_cuda: bool) -> ProcessMemory:
    """``count``: judges on the fullest device; on a CPU, all of them."""
    profile = load.profile
    if is_cuda and load.budget_bytes is not None and load.budget_bytes < load.all_bytes:
        how = f"reward.judge.memory_gb; all layers resident would take {load.all_bytes / _GIB:.2f} GiB, {load.source}"
        parts = [MemoryPart(name="weights and a pass", num_bytes=load.budget_bytes, how=how)]
    else:
        weights = profile.outside_bytes + profile.num_layers * profile.layer_bytes
        how = f"{max(load.longest, load.pass_tokens):,} tokens, the longest text {load.longest:,}, {load.source}"
        parts = [
            MemoryPart(name="weights", num_bytes=weights, how=f"{profile.num_layers} layers and what is outside them"),
            MemoryPart(name="a pass", num_bytes=load.all_bytes - weights, how=how),
        ]
    return ProcessMemory(name="judge", count=count, parts=(context(), *parts))


def estimated_profile(shape: ModelShape, itemsize: int, *, has_reward_head: bool) -> OffloadProfile:
    """Memory only: its seconds are 0."""
    num_embeddings = 1 if has_reward_head or shape.has_tied_embeddings else 2
    lengths = sorted({1, TILE, _LONGEST, *_bends(shape, itemsize)})
    return OffloadProfile(
        num_layers=shape.num_layers,
        layer_bytes=itemsize * (shape.layer_parameters + 2 * shape.hidden_size),
        outside_bytes=itemsize * num_embeddings * shape.embedding_parameters,
        held_bytes=itemsize * (shape.hidden_size + 2 * shape.head_dim),
        copy_s=0.0,
        points=tuple(
            LengthPoint(
                length=length, working_bytes=_working_bytes(shape, itemsize, length, has_reward_head), layer_s=0.0
            )
            for length in lengths
        ),
    )


def with_estimated_passes(profile: OffloadProfile, estimated: OffloadProfile) -> OffloadProfile:
    """A profile of a CPU, where memory cannot be measured, with the memory that the shape tells."""
    measured = any(point.working_bytes for point in profile.points)
    return profile if measured else replace(profile, points=estimated.points)


def _bends(shape: ModelShape, itemsize: int) -> list[int]:
    """Lengths at which another moment becomes the worst one; between them memory grows on straight lines."""
    attention, mlp = _attention(shape, itemsize), _mlp(shape, itemsize)
    tile, reading = TILE * _inside_mlp(shape, itemsize), _reading_bytes(shape)
    found = [reading // attention, max(0, reading - tile) // mlp, reading // (mlp + _inside_mlp(shape, itemsize))]
    if attention > mlp:
        found.append(tile // (attention - mlp))
    return [each + more for each in found for more in (0, 1) if 1 <= each < _LONGEST]


def _working_bytes(shape: ModelShape, itemsize: int, length: int, has_reward_head: bool) -> int:
    in_mlp = length * _mlp(shape, itemsize) + min(length, TILE) * _inside_mlp(shape, itemsize)
    return max(length * _attention(shape, itemsize), in_mlp, 0 if has_reward_head else _reading_bytes(shape))


def _attention(shape: ModelShape, itemsize: int) -> int:
    return 2 * itemsize * (shape.hidden_size + shape.query_size + shape.kv_size)


def _mlp(shape: ModelShape, itemsize: int) -> int:
    return 3 * itemsize * shape.hidden_size


def _inside_mlp(shape: ModelShape, itemsize: int) -> int:
    return 3 * itemsize * shape.mlp_width


def _reading_bytes(shape: ModelShape) -> int:
    return 2 * _FP32 * min(WEIGHTS_PER_PART, shape.embedding_parameters)
