"""The two ways of a batch to the trainer bring the same samples, the three of a response to a reward the same task."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from store.test_payload_store import response, segment
from tailrace.core.commands import Accumulate
from tailrace.core.ids import GroupId, ResponseId, Version
from tailrace.data.order import SourceOrder
from tailrace.data.prompts import Prompt, PromptSet
from tailrace.engines.contract import Sampling
from tailrace.observe.prompts.length_trace import LengthTrace, PromptLengths
from tailrace.rewards.assignment import RewardAssignment
from tailrace.runtime.inputs.catalogue import Catalogue, Source
from tailrace.store.payload_store import PayloadStore

NUMBERS = (1, 4, 2)
COMMAND = Accumulate(
    version=Version(0),
    responses=tuple(response(number) for number in NUMBERS),
    scores=(0.5, 1.0, 0.0),
    truncated=(response(4),),
)


def catalogue(store: PayloadStore, forced_lengths: LengthTrace | None = None) -> Catalogue:
    prompts = {
        number: Prompt(index=number, row={}, text="", tokens=np.arange(number + 1, dtype=np.int32))
        for number in range(5)
    }
    prompt_set = PromptSet(name="train", path="", prompts=prompts, columns=(), num_rows=5, num_filtered=0)
    order = SourceOrder(range(5), source="train", seed=0, shuffle=False)
    source = Source(prompts=prompt_set, order=order, sampling=Sampling(), budget=8, forced_lengths=forced_lengths)
    return Catalogue({"train": source}, store, decode=spelled, rewards=RewardAssignment(uses=(), given=(), specs={}))


def test_forced_lengths_are_those_of_the_trace_and_no_longer_than_the_budget(tmp_path: Path) -> None:
    rows = [
        PromptLengths(source="", epoch=0, index=index, prompt_length=None, lengths=lengths)
        for index, lengths in enumerate([(3, 5), (900, 7)])
    ]
    trace = LengthTrace(model=None, cap=None, group_size=2, prompts=tuple(rows))
    expected = {(0, 0, 0): 3, (0, 1, 0): 5, (0, 1, 1): 3, (1, 0, 0): 8, (3, 1, 0): 7, (4, 0, 0): 3}
    with PayloadStore.open(tmp_path, file_bytes=100) as store:
        known = catalogue(store, trace)
        for (prompt, member, attempt), length in expected.items():
            name = ResponseId(GroupId("train", 2, prompt), member, attempt)
            assert known.request(name, 0).forced_length == length
        assert catalogue(store).request(name, 0).forced_length is None


def spelled(tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
    return " ".join(str(int(token)) for token in tokens)


def test_a_batch_by_address_holds_the_samples_of_a_batch_that_is_sent(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path, file_bytes=100) as store:
        for number in range(5):
            store.append([segment(number, 0, 10, full=number == 2), segment(number, 10, 3, version=1)])
        sent, stored = catalogue(store).sent(COMMAND), catalogue(store).stored(COMMAND)
    travelled = pickle.loads(pickle.dumps(stored))
    assert len(sent.read()) == len(NUMBERS)
    for mine, theirs in zip(sent.read(), travelled.read(), strict=True):
        assert (mine.response_id, mine.score, mine.is_truncated) == (
            theirs.response_id,
            theirs.score,
            theirs.is_truncated,
        )
        assert mine.response.versions == theirs.response.versions == ((0, 10), (1, 3))
        np.testing.assert_array_equal(mine.prompt, theirs.prompt)
        for name in ("tokens", "logprobs", "behaviour_logprobs", "mask"):
            np.testing.assert_array_equal(getattr(mine.response, name), getattr(theirs.response, name))


def test_a_batch_by_address_does_not_grow_with_its_responses(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path) as store:
        for number, length in zip(NUMBERS, (10, 10_000, 10), strict=True):
            store.append([segment(number, 0, length)])
        sent, stored = (pickle.dumps(batch(COMMAND)) for batch in (catalogue(store).sent, catalogue(store).stored))
    assert len(stored) < 2_000
    assert len(sent) > 90_000


def test_a_response_as_tokens_becomes_the_task_that_has_its_text(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path, file_bytes=100) as store:
        for number in range(5):
            store.append([segment(number, 0, 10, full=number == 2), segment(number, 10, 3, version=1)])
        for number in NUMBERS:
            expected = catalogue(store).task(response(number))
            assert len(expected.response_tokens) == 13
            for task in (catalogue(store).sent_task, catalogue(store).stored_task):
                assert pickle.loads(pickle.dumps(task(response(number)))).read(spelled) == expected


def test_a_task_by_address_does_not_grow_with_its_response(tmp_path: Path) -> None:
    with PayloadStore.open(tmp_path) as store:
        store.append([segment(1, 0, 10_000)])
        sent, stored = (
            pickle.dumps(task(response(1))) for task in (catalogue(store).sent_task, catalogue(store).stored_task)
        )
    assert len(stored) < 1_000
    assert len(sent) > 40_000
