"""Experts of a mixture's tokens are kept with the tokens, and cost nothing where there are none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.store import routing_bytes
from tailrace.store.payload_reader import PayloadReader
from tailrace.store.payload_store import PayloadStore
from tailrace.store.record import encode
from tailrace.store.segment import Routing, Segment

NAME = ResponseId(GroupId("train", 0, 1), 0)


def segment(start: int, count: int, routing: Routing | None, *, is_masked: bool = False) -> Segment:
    tokens = np.arange(start, start + count, dtype=np.int32)
    return Segment(
        response_id=NAME,
        start=start,
        version=Version(0),
        tokens=tokens,
        logprobs=-tokens.astype(np.float32),
        mask=np.full(count, not is_masked, np.uint8),
        routing=routing,
    )


def experts(count: int, seed: int = 0, num_experts: int = 8) -> Routing:
    return np.random.default_rng(seed).integers(-1, num_experts, (count, 3, 2)).astype(np.int16)


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("num_experts", [8, 255, 256, 1000])
def test_experts_are_read_as_they_were_written(tmp_path: Path, num_experts: int, is_masked: bool) -> None:
    written = experts(50, num_experts=num_experts)
    written[0, 0] = [num_experts - 1, -1]
    with PayloadStore.open(tmp_path) as store:
        store.append([segment(0, 50, written, is_masked=is_masked)])
    with PayloadReader.open(tmp_path) as reader:
        response = reader.response(NAME)
    assert response.routing is not None
    assert response.routing.dtype == np.int16
    assert response.routing.tolist() == written.tolist()
    assert response.mask.tolist() == [int(not is_masked)] * 50


def test_up_to_255_experts_take_one_byte_each() -> None:
    assert len(routing_bytes.pack(experts(10, num_experts=255))) == 5 + 10 * 3 * 2
    large = experts(10)
    large[3, 1, 0] = 255
    assert len(routing_bytes.pack(large)) == 5 + 2 * 10 * 3 * 2


def test_a_replaced_tail_loses_its_experts_too_and_segments_without_any_are_unknown(tmp_path: Path) -> None:
    first, last = experts(5, seed=1), experts(2, seed=2)
    with PayloadStore.open(tmp_path) as store:
        store.append([segment(0, 5, first)])
        store.append([segment(3, 2, None)])
        store.append([segment(5, 2, last)])
    with PayloadReader.open(tmp_path) as reader:
        routing = reader.response(NAME).routing
    assert routing is not None
    assert routing[:3].tolist() == first[:3].tolist()
    assert (routing[3:5] == -1).all()
    assert routing[5:].tolist() == last.tolist()


def test_a_record_without_experts_has_the_bytes_it_always_had() -> None:
    before = (  # written before experts were kept
        "545253322e0000001800000084c05d3504000000030000000000000000000000000000000000000001000000000000000000000000000000"
        "00747261696e040000000500000006000000000080c00000a0c00000c0c0"
    )
    assert encode(segment(4, 3, None)).hex() == before
    assert len(encode(segment(4, 3, experts(3)))) == len(bytes.fromhex(before)) + 5 + 3 * 3 * 2


def test_experts_of_another_number_of_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="routing of 4 tokens, the segment has 3"):
        encode(replace(segment(0, 3, None), routing=experts(4)))
