"""Random histories against a model that keeps everything in memory."""

from __future__ import annotations

import tempfile

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.store.payload_store import PayloadStore
from tailrace.store.segment import ResponsePayload, Segment, join

NUM_RESPONSES = 3
OPERATIONS = st.one_of(
    st.tuples(
        st.just("append"), st.integers(0, NUM_RESPONSES - 1), st.floats(0, 1), st.integers(0, 5), st.integers(0, 7)
    ),
    st.tuples(st.just("forget"), st.integers(0, NUM_RESPONSES - 1)),
    st.tuples(st.just("compact")),
    st.tuples(st.just("reopen")),
)


def response(number: int) -> ResponseId:
    return ResponseId(GroupId("set:with:colons", 2, number), 1, 3)


def make_segment(number: int, start: int, count: int, flavour: int, salt: int) -> Segment:
    random = np.random.default_rng(salt)
    return Segment(
        response_id=response(number),
        start=start,
        version=None if flavour == 7 else Version(flavour),
        tokens=random.integers(-(2**31), 2**31, count).astype(np.int32),
        logprobs=random.normal(size=count).astype(np.float32),
        behaviour_logprobs=random.normal(size=count).astype(np.float32) if flavour % 2 else None,
        mask=random.integers(0, 2, count).astype(np.uint8) if flavour > 4 else np.ones(count, np.uint8),
    )


def shortened(segment: Segment, end: int) -> Segment:
    count = min(end, segment.end) - segment.start
    return Segment(
        response_id=segment.response_id,
        start=segment.start,
        version=segment.version,
        tokens=segment.tokens[:count],
        logprobs=segment.logprobs[:count],
        behaviour_logprobs=None if segment.behaviour_logprobs is None else segment.behaviour_logprobs[:count],
        mask=segment.mask[:count],
    )


def assert_equal(ours: ResponsePayload, expected: ResponsePayload) -> None:
    assert ours.versions == expected.versions
    for name in ("tokens", "logprobs", "behaviour_logprobs", "mask"):
        assert np.array_equal(getattr(ours, name), getattr(expected, name)), name


@settings(max_examples=80, deadline=None)
@given(st.lists(OPERATIONS, max_size=30), st.sampled_from([1, 300, 10_000]), st.sampled_from([0, 3_000, 100_000]))
def test_any_history_of_appends_replacements_rotation_compaction_and_reopening_keeps_what_is_needed(
    operations: list[tuple], file_bytes: int, recent_bytes: int
) -> None:
    model: dict[ResponseId, list[Segment]] = {}
    with tempfile.TemporaryDirectory() as directory:
        store = PayloadStore.open(directory, file_bytes=file_bytes, recent_bytes=recent_bytes)
        for salt, operation in enumerate(operations):
            match operation:
                case ("append", number, where, count, flavour):
                    start = round(where * store.length(response(number)))
                    new = make_segment(number, start, count, flavour, salt)
                    store.append([new])
                    kept = [shortened(s, start) for s in model.get(new.response_id, []) if s.start < start]
                    model[new.response_id] = [*kept, new]
                case ("forget", number):
                    store.release([response(number)])
                    model.pop(response(number), None)
                case ("compact",):
                    store.compact()
                case ("reopen",):
                    store.close()
                    store = PayloadStore.open(directory, file_bytes=file_bytes, recent_bytes=recent_bytes)
                    assert store.repaired_bytes == 0
                    store.release([r for r in store.held() if r not in model])
            assert set(store.held()) == set(model)
            for known, segments in model.items():
                assert store.length(known) == segments[-1].end
                assert_equal(store.response(known), join(known, segments))
        store.close()
