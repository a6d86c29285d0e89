"""What an engine says arrives as it was said, in few pieces."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.core.responses.response import Finish
from tailrace.engines.contract import Output
from tailrace.store.segment import Segment
from tailrace.workers.messages import Report


def output(
    member: int,
    count: int,
    *,
    finish: Finish | None = None,
    is_cut: bool = False,
    zeros: int = 0,
    experts: int = 0,
) -> Output:
    mask = np.ones(count, np.uint8)
    mask[:zeros] = 0
    logprobs = -np.arange(count, dtype=np.float32)
    segment = Segment(
        response_id=ResponseId(GroupId("a:b", 1, 2), member, 3),
        start=10 * member,
        version=None if zeros else Version(member),
        tokens=np.arange(count, dtype=np.int32),
        logprobs=logprobs,
        behaviour_logprobs=logprobs - 1 if is_cut else None,
        mask=mask,
        routing=np.arange(count * experts * 2, dtype=np.int16).reshape(count, experts, 2) if experts else None,
    )
    return Output(segment=segment, finish=finish)


@pytest.mark.parametrize(
    "outputs",
    [
        (),
        (output(0, 5), output(1, 3, finish=Finish.STOP)),
        (output(0, 0, finish=Finish.INTERRUPTED), output(1, 4, is_cut=True), output(2, 2), output(3, 3, is_cut=True)),
        (output(0, 5, zeros=2), output(1, 3)),
        (output(0, 5, experts=3), output(1, 0, experts=3, finish=Finish.LENGTH), output(2, 4), output(3, 2, experts=3)),
    ],
)
def test_a_report_is_read_as_it_was_written(outputs: tuple[Output, ...]) -> None:
    report = Report(
        version=Version(4), outputs=outputs, num_preemptions=1, submit_s=0.5, interrupt_s=0.25, prefill=None
    )
    found = pickle.loads(pickle.dumps(report))
    assert (found.version, found.num_preemptions, found.submit_s, found.interrupt_s) == (4, 1, 0.5, 0.25)
    assert len(found.outputs) == len(outputs)
    for mine, theirs in zip(found.outputs, outputs, strict=True):
        assert mine.finish == theirs.finish
        for name in ("response_id", "start", "version"):
            assert getattr(mine.segment, name) == getattr(theirs.segment, name)
        for name in ("tokens", "logprobs", "behaviour_logprobs", "mask", "routing"):
            a, b = getattr(mine.segment, name), getattr(theirs.segment, name)
            assert (a is None) == (b is None)
            assert a is None or (a.dtype == b.dtype and a.tolist() == b.tolist())
