"""Packs the outputs of an engine into a few arrays: ``unpack(pack(outputs)) == outputs``.

An output consists of half a dozen small objects. Pickling thousands of them would take longer than generating them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.core.responses.response import Finish
from tailrace.engines.contract import Output
from tailrace.store.segment import Routing, Segment

Row = tuple[str, int, int, int, int, int, int, Version | None, Finish | None, bool]
"""Source, epoch, prompt, member, attempt, start, number of tokens, version, finish, has untruncated log-probs."""


class PackedRouting(NamedTuple):
    experts: Routing
    """Experts of the outputs that have them, concatenated."""
    has_experts: tuple[bool, ...]
    """For each output."""


class PackedOutputs(NamedTuple):
    rows: tuple[Row, ...]
    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    behaviour_logprobs: NDArray[np.float32]
    """Untruncated log-probs of the outputs that have them, concatenated."""
    mask: NDArray[np.uint8] | None
    """Loss masks of all outputs, concatenated; None: all ones."""
    routing: PackedRouting | None = None
    """None: no output has any."""


def pack(outputs: Sequence[Output]) -> PackedOutputs:
    segments = [output.segment for output in outputs]
    mask = _join([segment.mask for segment in segments], np.uint8)
    return PackedOutputs(
        rows=tuple(_row(output) for output in outputs),
        tokens=_join([segment.tokens for segment in segments], np.int32),
        logprobs=_join([segment.logprobs for segment in segments], np.float32),
        behaviour_logprobs=_join(
            [s.behaviour_logprobs for s in segments if s.behaviour_logprobs is not None], np.float32
        ),
        mask=None if bool(np.all(mask == 1)) else mask,
        routing=_pack_routing(segments),
    )


def unpack(packed: PackedOutputs) -> tuple[Output, ...]:
    mask = np.ones(len(packed.tokens), np.uint8) if packed.mask is None else packed.mask
    tokens, logprobs = packed.tokens, packed.logprobs
    position = full_position = 0
    outputs = []
    group = GroupId("", 0, 0)
    routing = _unpack_routing(packed)
    for source, epoch, prompt, member, attempt, start, count, version, finish, has_full in packed.rows:
        end = position + count
        full = packed.behaviour_logprobs[full_position : full_position + count] if has_full else None
        full_position += count * has_full
        if group != (source, epoch, prompt):  # most follow another member of their group
            group = GroupId(source, epoch, prompt)
        segment = Segment(
            response_id=ResponseId(group, member, attempt),
            start=start,
            version=version,
            tokens=tokens[position:end],
            logprobs=logprobs[position:end],
            behaviour_logprobs=full,
            mask=mask[position:end],
            routing=next(routing),
        )
        outputs.append(Output(segment=segment, finish=finish))
        position = end
    return tuple(outputs)


def _pack_routing(segments: Sequence[Segment]) -> PackedRouting | None:
    found = [segment.routing for segment in segments if segment.routing is not None]
    if not found:
        return None
    return PackedRouting(np.concatenate(found), tuple(segment.routing is not None for segment in segments))


def _unpack_routing(packed: PackedOutputs) -> Iterator[Routing | None]:
    if packed.routing is None:
        yield from repeat(None, len(packed.rows))
        return
    position = 0
    for row, has_experts in zip(packed.rows, packed.routing.has_experts, strict=True):
        count = row[6] * has_experts
        yield packed.routing.experts[position : position + count] if has_experts else None
        position += count


def _row(output: Output) -> Row:
    segment = output.segment
    (source, epoch, prompt), member, attempt = segment.response_id
    has_full = segment.behaviour_logprobs is not None
    count = len(segment.tokens)
    return (source, epoch, prompt, member, attempt, segment.start, count, segment.version, output.finish, has_full)


def _join(arrays: Sequence[Any], dtype: Any) -> Any:
    return np.concatenate(arrays, dtype=dtype) if arrays else np.empty(0, dtype)
