from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from store.test_payload_store import response, segment
from tailrace.data.models import resolve_model
from tailrace.data.tokenizer import detokenizer, load_tokenizer
from tailrace.rewards.score_task import RewardUse, ScoreResult, ScoreTask
from tailrace.store.address import address_of
from tailrace.store.payload_store import PayloadStore
from tailrace.workers.reward_messages import (
    ResponseUnreadable,
    RewardInit,
    RewardReady,
    ScoreStarted,
    SkipTasks,
    TaskSkipped,
)
from tailrace.workers.reward_tasks import SentTokens, StoredTokens, TokenTask
from tailrace.workers.reward_worker import serve

HEAVY = "print([name for name in ('torch', 'transformers', 'numpy', 'pydantic') if name in sys.modules])"
TOKENIZER = load_tokenizer(resolve_model("tiny-arith"))


def output_of(script: str) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    return result.stdout.strip()


def test_the_reward_process_imports_neither_torch_nor_transformers_nor_numpy() -> None:
    assert output_of(f"import sys, tailrace.workers.reward_worker\n{HEAVY}") == "[]"


def test_making_texts_imports_none_of_them_either(tmp_path: Path) -> None:
    tokenizer = TOKENIZER.backend_tokenizer.to_str().encode()
    script = (
        f"import sys, tailrace.workers.reward_worker\nfrom tailrace.data.detokenizer import Detokenizer\n"
        f"Detokenizer(tokenizer={tokenizer!r}).load()((5, 6))\n{HEAVY}"
    )
    assert output_of(script) == "[]"


class NoMoreTasks(Exception):
    pass


class FakeLink:
    """Gives the tasks one after the other and keeps what the worker says."""

    def __init__(self, *tasks: object) -> None:
        self._tasks, self.sent = list(tasks), []

    def receive(self, timeout: float | None = None) -> object | None:
        if self._tasks:
            return self._tasks.pop(0)
        if timeout == 0:
            return None
        raise NoMoreTasks

    def send(self, message: object) -> None:
        self.sent.append(message)


def answers(*tasks: object) -> list[object]:
    """What a reward process says about the tasks, after it is ready."""
    link = FakeLink(*tasks)
    init = RewardInit(uses=(RewardUse(function="exact_match"),), memory_mb=None, detokenizer=detokenizer(TOKENIZER))
    with pytest.raises(NoMoreTasks):
        serve(link, init)
    assert isinstance(link.sent[0], RewardReady)
    return link.sent[1:]


def token_task(number: int, tokens: SentTokens | StoredTokens) -> TokenTask:
    return TokenTask(
        response_id=response(number),
        row={"prompt": "p", "answer": "12"},
        prompt_text="p",
        prompt=SentTokens(data=b""),
        response=tokens,
        rewards=(),
        source="",
    )


def sent(text: str) -> SentTokens:
    ids = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return SentTokens(data=b"".join(number.to_bytes(4, "little") for number in [*ids, TOKENIZER.eos_token_id]))


def test_tokens_are_scored_like_their_text() -> None:
    text = ScoreTask(response_id=response(1), row={"prompt": "p", "answer": "12"}, response="12")
    results = answers(text, token_task(2, sent("12")), token_task(3, sent("13")))
    assert [result.score for result in results if isinstance(result, ScoreResult)] == [1.0, 1.0, 0.0]


def test_the_time_limit_starts_after_the_text_is_made(tmp_path: Path) -> None:
    """A response that cannot be read never starts, and the process goes on with the next one."""
    with PayloadStore.open(tmp_path) as store:
        store.append([segment(1, 0, 5)])
        lost = StoredTokens(directory=tmp_path / "elsewhere", address=address_of(store, response(1)))
    unreadable, started, result = answers(token_task(1, lost), token_task(2, sent("12")))
    assert isinstance(unreadable, ResponseUnreadable)
    assert unreadable.response_id == response(1)
    assert "payload-000001.bin" in unreadable.reason
    assert started == ScoreStarted(response_id=response(2), limit_s=10.0)
    assert isinstance(result, ScoreResult)


def test_a_task_that_was_called_off_is_answered_in_its_turn_and_not_scored() -> None:
    tasks = [token_task(number, sent("12")) for number in range(3)]
    said = answers(*tasks, SkipTasks(responses=frozenset({response(1), response(7)})))
    kinds = [(type(message), message.response_id) for message in said]
    assert kinds == [
        (ScoreStarted, response(0)),
        (ScoreResult, response(0)),
        (TaskSkipped, response(1)),
        (ScoreStarted, response(2)),
        (ScoreResult, response(2)),
    ]


def test_a_task_that_is_given_again_after_it_was_called_off_is_scored() -> None:
    first, second = token_task(0, sent("12")), token_task(1, sent("12"))
    said = answers(first, second, SkipTasks(responses=frozenset({second.response_id})), second)
    assert [type(message) for message in said[2:]] == [TaskSkipped, ScoreStarted, ScoreResult]
