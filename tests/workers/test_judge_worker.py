from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from contract.worker_story import Story
from store.test_payload_store import response, segment
from tailrace.core.outcomes import Outcome
from tailrace.data.models import resolve_model
from tailrace.data.tokenizer import detokenizer, load_tokenizer
from tailrace.judge.questions import Question
from tailrace.judge.template import AnswerWord, JudgeTemplate
from tailrace.rewards.score_task import ScoreResult, ScoreTask
from tailrace.runtime.launchers.process import ProcessLauncher
from tailrace.runtime.launchers.worker import WorkerSpec
from tailrace.store.address import address_of
from tailrace.store.payload_store import PayloadStore
from tailrace.workers.judge_messages import (
    JudgeInit,
    JudgeReady,
    JudgeRefused,
    JudgeResponses,
    LogprobsRead,
    PassStarted,
    QuestionRefused,
    ReadLogprobs,
    ResponsesJudged,
)
from tailrace.workers.judge_worker import serve
from tailrace.workers.reward_messages import ResponseUnreadable, SkipTasks, TaskSkipped
from tailrace.workers.reward_tasks import SentTokens, StoredTokens, TokenTask

MODEL = resolve_model("tiny-arith")
TOKENIZER = load_tokenizer(MODEL)
INIT = JudgeInit(
    model_path=MODEL,
    template=JudgeTemplate(user="{prompt}{response}+0=", is_chat=False),
    answers=(AnswerWord(word="1", value=1.0), AnswerWord(word="2", value=0.0)),
    device="cpu",
    dtype="float32",
    threads=1,
    detokenizer=detokenizer(TOKENIZER),
)


class NoMoreMessages(Exception):
    pass


class Controller:
    """The other end of the link. A batch of messages arrives at once; the next one when the judge has nothing to do,
    or after the pass during which it is said to come."""

    def __init__(self, *batches: list[object]) -> None:
        self._batches = [list(batch) for batch in batches]
        self._arrived: list[object] = []
        self.sent: list[Any] = []

    def receive(self, timeout: float | None = None) -> object | None:
        if not self._arrived and self._batches and (timeout is None or self._has_begun()):
            self._arrived = self._batches.pop(0)
        if self._arrived:
            return self._arrived.pop(0)
        if timeout == 0:
            return None
        raise NoMoreMessages

    def _has_begun(self) -> bool:
        return isinstance(self.sent[-1], ResponsesJudged | LogprobsRead)

    def send(self, message: object) -> None:
        self.sent.append(message)


def said(*batches: list[object], init: JudgeInit = INIT) -> list[Any]:
    """What the judge says after it is ready."""
    torch.set_num_threads(1)
    controller = Controller(*batches)
    with pytest.raises(NoMoreMessages):
        serve(controller, init)
    assert isinstance(controller.sent[0], JudgeReady)
    return controller.sent[1:]


def task(number: int, text: str, **row: object) -> ScoreTask:
    return ScoreTask(response_id=response(number), row={"prompt": "1+", **row}, response=text)


def results(messages: list[Any]) -> dict[int, ScoreResult]:
    found = [result for message in messages if isinstance(message, ResponsesJudged) for result in message.results]
    return {result.response_id.group.prompt: result for result in found}


def test_what_waits_is_scored_in_one_pass_and_answered_in_one_message() -> None:
    tasks = [task(number, str(number)) for number in range(1, 6)]
    started, judged = said([JudgeResponses(tasks=tuple(tasks[:2])), JudgeResponses(tasks=tuple(tasks[2:]))])
    assert started == PassStarted(responses=tuple(each.response_id for each in tasks))
    assert [result.response_id for result in judged.results] == [each.response_id for each in tasks]
    assert {result.outcome for result in judged.results} == {Outcome.OK}
    assert all(0 < result.score < 1 and 0 < result.extras["answer_mass"] < 1 for result in judged.results)
    assert judged.num_tokens == sum(len(TOKENIZER("").input_ids) + len("1+") + 1 + len("+0=") for _ in tasks)
    assert judged.num_resident == 3


def test_a_score_does_not_depend_on_the_pass_or_the_resident_layers() -> None:
    tasks = [task(number, "1" * number) for number in range(1, 8)]
    together = results(said([JudgeResponses(tasks=tuple(tasks))]))
    small = replace(INIT, max_tokens=20)
    messages = said([JudgeResponses(tasks=tuple(tasks))], init=small)
    assert sum(isinstance(message, PassStarted) for message in messages) > 2
    few = replace(INIT, budget_bytes=1_600_000)
    offloaded = said([JudgeResponses(tasks=tuple(tasks))], init=few)
    assert {message.num_resident for message in offloaded if isinstance(message, ResponsesJudged)} == {0}
    for other in (results(messages), results(offloaded)):
        assert {number: result.score for number, result in other.items()} == {
            number: result.score for number, result in together.items()
        }


def test_messages_are_read_between_two_passes() -> None:
    tasks = [task(number, str(number)) for number in range(1, 4)]
    skip = SkipTasks(responses=frozenset({response(3), response(9)}))
    messages = said([JudgeResponses(tasks=tuple(tasks))], [skip], init=replace(INIT, max_tokens=1))
    kinds = [type(message) for message in messages]
    assert kinds == [PassStarted, ResponsesJudged, TaskSkipped, PassStarted, ResponsesJudged]
    assert messages[2].response_id == response(3)
    assert set(results(messages)) == {1, 2}


def test_tokens_are_judged_like_their_text(tmp_path: Path) -> None:
    ids = [*TOKENIZER("12", add_special_tokens=False).input_ids, TOKENIZER.eos_token_id]
    sent = SentTokens(data=np.array(ids, "<i4").tobytes())
    with PayloadStore.open(tmp_path) as store:
        store.append([segment(1, 0, 5)])
        lost = StoredTokens(directory=tmp_path / "elsewhere", address=address_of(store, response(1)))
    tokens = [
        TokenTask(
            response_id=response(number),
            row={"prompt": "1+"},
            prompt_text="",
            prompt=SentTokens(data=b""),
            response=found,
            rewards=(),
            source="",
        )
        for number, found in ((1, lost), (2, sent))
    ]
    unreadable, _, judged = said([JudgeResponses(tasks=(*tokens, task(3, "12")))])
    assert isinstance(unreadable, ResponseUnreadable)
    assert unreadable.response_id == response(1)
    by_tokens, by_text = judged.results
    assert by_tokens.score == by_text.score


def test_questions_are_answered_with_logprobs_and_apart_from_responses() -> None:
    tokens = np.array(TOKENIZER("1+2=3").input_ids, np.int32)
    asked = Question.about_each_token(tokens, start=1)
    beyond = Question.about_the_end(np.array([1, 500], np.int32), tokens[:1])
    messages = said(
        [
            JudgeResponses(tasks=(task(1, "1"),)),
            ReadLogprobs(questions=((response(2), asked), (response(3), beyond))),
        ]
    )
    refused, _, judged, started, read = messages
    assert refused == QuestionRefused(response_id=response(3), reason="tokens must be from 0 to 18, got 1 to 500")
    assert isinstance(judged, ResponsesJudged)
    assert started.responses == (response(2),)
    [(name, logprobs)] = read.found
    assert name == response(2)
    assert logprobs.shape == (len(tokens) - 1, 1)
    assert (logprobs < 0).all()


def test_a_response_that_cannot_be_judged_is_an_error_and_the_others_are_scored() -> None:
    init = replace(INIT, template=JudgeTemplate(user="{response}={note}", is_chat=False))
    messages = said(
        [JudgeResponses(tasks=(task(1, "1"), task(2, "1" * 2000, note="1"), task(3, "1", note=3)))], init=init
    )
    found = results(messages)
    assert "'note'" in found[1].detail
    assert "are more than the judge can read" in found[2].detail
    assert [found[number].outcome for number in (1, 2, 3)] == [Outcome.ERROR, Outcome.ERROR, Outcome.OK]


def test_a_judge_that_cannot_work_says_why(tmp_path: Path) -> None:
    for init, reason in (
        (replace(INIT, template=JudgeTemplate(user="{response}")), "no chat template"),
        (replace(INIT, answers=(AnswerWord(word="12", value=1.0),)), "must be one token"),
        (replace(INIT, answers=()), "must give one number|holds no weights for score"),
        (replace(INIT, budget_bytes=1000), "needs at least .* bytes, not 1,000"),
        (replace(INIT, model_path=tmp_path), "config"),
    ):
        controller = Controller()
        serve(controller, init)
        [refused] = controller.sent
        assert isinstance(refused, JudgeRefused)
        with pytest.raises(ValueError, match=reason):
            raise ValueError(refused.reason)


def test_importing_the_messages_needs_no_torch() -> None:
    script = "import sys, tailrace.workers.judge_messages; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.slow
def test_a_judge_process_answers_as_long_as_it_lives_and_is_lost_when_killed(tmp_path: Path) -> None:
    async def scenario() -> None:
        story = Story()
        spec = WorkerSpec(name="judge-0", entry="tailrace.workers.judge_worker:serve", init=INIT)
        worker = ProcessLauncher(tmp_path)(spec, hear=story.hear, lose=story.lose)
        assert isinstance(await story.message(0), JudgeReady)
        for number in (1, 2):
            worker.send(JudgeResponses(tasks=(task(number, "1"),)))
            assert await story.message(2 * number - 1) == PassStarted(responses=(response(number),))
            judged = await story.message(2 * number)
            assert isinstance(judged, ResponsesJudged)
            assert judged.results[0].outcome is Outcome.OK
        asked = Question.about_each_token(np.array([3, 4, 5], np.int32), start=1)
        worker.send(ReadLogprobs(questions=((response(5), asked),)))
        read = await story.message(6)
        assert isinstance(read, LogprobsRead)
        assert read.found[0][1].shape == (2, 1)
        worker.kill()
        assert "worker 'judge-0' was killed" in await story.ending()

    asyncio.run(scenario())
