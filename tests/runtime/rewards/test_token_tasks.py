"""Responses that come as tokens, by real reward processes: by address, as bytes, and ones that cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.rewards.test_reward_pool import TOTAL_WAIT_S, Results
from store.test_payload_store import response
from tailrace.config.reward_settings import RewardSettings
from tailrace.core.ids import ResponseId, Version
from tailrace.core.outcomes import Outcome
from tailrace.data.models import resolve_model
from tailrace.data.order import SourceOrder
from tailrace.data.prompts import Prompt, PromptSet
from tailrace.data.tokenizer import detokenizer, load_tokenizer
from tailrace.engines.contract import Sampling
from tailrace.rewards.assignment import RewardAssignment
from tailrace.runtime.inputs.catalogue import Catalogue, Source
from tailrace.runtime.launchers.process import ProcessLauncher
from tailrace.runtime.rewards.reward_pool import RewardPool
from tailrace.store.payload_store import PayloadStore
from tailrace.store.record_frame import DamagedStore
from tailrace.store.segment import Segment

TOKENIZER = load_tokenizer(resolve_model("tiny-arith"))
FUNCTIONS = """
def check(response, prompt, answer, prompt_ids, completion_ids):
    assert prompt == "1+2=" and answer == "3"
    return {"score": sum(map(ord, response)), "ids": sum(completion_ids), "prompt_ids": sum(prompt_ids)}
"""
TEXTS = ("12*(3-4)= 5", "", "#" * 3000)
Way = Callable[[Catalogue, ResponseId], Any]
WAYS = [Catalogue.task, Catalogue.stored_task, Catalogue.sent_task]


def ids(text: str) -> list[int]:
    found: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return [*found, TOKENIZER.eos_token_id]


def catalogue(store: PayloadStore) -> Catalogue:
    prompt = np.array(ids("1+2="), np.int32)
    prompts = {
        number: Prompt(index=number, row={"prompt": "1+2=", "answer": "3"}, text="1+2=", tokens=prompt)
        for number in range(len(TEXTS))
    }
    prompt_set = PromptSet(name="train", path="", prompts=prompts, columns=(), num_rows=3, num_filtered=0)
    order = SourceOrder(range(3), source="train", seed=0, shuffle=False)
    source = Source(prompts=prompt_set, order=order, sampling=Sampling(), budget=8)
    rewards = RewardAssignment(uses=(), given=("check",), specs={})
    return Catalogue({"train": source}, store, decode=TOKENIZER.decode, rewards=rewards)


def fill(store: PayloadStore) -> None:
    """Every response in pieces, over several files."""
    for number, text in enumerate(TEXTS):
        tokens = np.array(ids(text), np.int32)
        for start in range(0, len(tokens), 1000):
            part = tokens[start : start + 1000]
            store.append(
                [
                    Segment(
                        response_id=response(number),
                        start=start,
                        version=Version(0),
                        tokens=part,
                        logprobs=np.zeros(len(part), np.float32),
                        mask=np.ones(len(part), np.uint8),
                    )
                ]
            )


async def with_pool(directory: Path, act: Callable[[RewardPool, Results], Any]) -> None:
    (directory / "functions.py").write_text(FUNCTIONS)
    results = Results()
    pool = RewardPool(
        RewardSettings(functions=(f"{directory / 'functions.py'}:check",), timeout_s=20.0),
        launch=ProcessLauncher(directory / "logs"),
        on_result=results.add,
        detokenizer=detokenizer(TOKENIZER),
    )
    await pool.start()
    try:
        await act(pool, results)
    finally:
        await pool.stop()


@pytest.mark.parametrize("way", WAYS)
def test_a_function_receives_the_same_on_every_way(tmp_path: Path, way: Way) -> None:
    async def act(pool: RewardPool, results: Results) -> None:
        with PayloadStore.open(tmp_path / "payload", file_bytes=5000) as store:
            fill(store)
            for number in range(len(TEXTS)):
                pool.submit(way(catalogue(store), response(number)))
            found = {result.response_id: result for result in await results.first(len(TEXTS))}
        for number, text in enumerate(TEXTS):
            result = found[response(number)]
            expected = sum(map(ord, TOKENIZER.decode(ids(text), skip_special_tokens=True)))
            assert (result.outcome, result.score) == (Outcome.OK, expected), result.detail
            assert result.extras == {"ids": sum(ids(text)), "prompt_ids": sum(ids("1+2="))}

    asyncio.run(with_pool(tmp_path, act))


def test_a_response_that_cannot_be_read_ends_the_run_as_a_damaged_store(tmp_path: Path) -> None:
    async def act(pool: RewardPool, results: Results) -> None:
        loop = asyncio.get_running_loop()
        broken: asyncio.Future[Any] = loop.create_future()
        loop.set_exception_handler(lambda _, context: broken.set_result(context["exception"]))
        with PayloadStore.open(tmp_path / "payload") as store:
            fill(store)
            task = catalogue(store).stored_task(response(0))
            (tmp_path / "payload" / "payload-000001.bin").unlink()
            pool.submit(task)
            async with asyncio.timeout(TOTAL_WAIT_S):
                error = await broken
        assert isinstance(error, DamagedStore)
        assert "payload-000001.bin" in str(error)
        assert results.all == []

    asyncio.run(with_pool(tmp_path, act))


def test_a_response_whose_reward_was_aborted_may_be_unreadable(tmp_path: Path) -> None:
    """The store may delete a response that nobody needs while a process still has the task to score it."""

    async def act(pool: RewardPool, results: Results) -> None:
        with PayloadStore.open(tmp_path / "payload") as store:
            fill(store)
            task, sent = catalogue(store).stored_task(response(0)), catalogue(store).sent_task(response(1))
            (tmp_path / "payload" / "payload-000001.bin").unlink()
            pool.submit(task)
            pool.abort([response(0)])
            pool.submit(sent)
            outcomes = [result.outcome for result in await results.first(2)]
        assert outcomes == [Outcome.ABORTED, Outcome.OK]

    asyncio.run(with_pool(tmp_path, act))
