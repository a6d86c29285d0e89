"""Judges behind a server, as real processes, with a server on loopback that answers, fails or says nothing."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from judge.openai_server import Server, openai_server
from tailrace.config.judge_settings import JudgeSettings
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.judge.template import AnswerWord, JudgeTemplate
from tailrace.rewards.score_task import RewardUse, ScoreResult, ScoreTask
from tailrace.runtime.adapters.open_judges import open_judges
from tailrace.runtime.launchers.process import ProcessLauncher
from tailrace.runtime.launchers.worker import Hear, Lose, WorkerHandle, WorkerSpec
from tailrace.runtime.rewards.judge_pool import JudgePool
from tailrace.workers.judge_messages import UrlJudgeInit

WAIT_S = 240.0
KEY = "TAILRACE_TEST_KEY"
WORDS = (AnswerWord(word="Yes", value=1.0), AnswerWord(word="No", value=0.0))


def name(number: int) -> ResponseId:
    return ResponseId(GroupId("train", 0, number), 0)


class Asked:
    def __init__(self, pool: JudgePool, results: dict[int, ScoreResult], server: Server) -> None:
        self.pool, self.results, self.server = pool, results, server

    def submit(self, number: int, text: str) -> None:
        self.pool.submit(ScoreTask(response_id=name(number), row={"prompt": "1+1"}, response=text))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                await asyncio.sleep(0.005)

    async def all(self, *texts: str) -> list[ScoreResult]:
        for number, text in enumerate(texts):
            self.submit(number, text)
        await self.until(lambda: len(self.results) >= len(texts))
        return [self.results[number] for number in range(len(texts))]


@asynccontextmanager
async def judged(folder: Path, server: Server, *, timeout_s: float = 120.0, **changes: Any) -> AsyncIterator[Asked]:
    settings = JudgeSettings(model="a-judge", url=server.url, timeout_s=timeout_s, api_key_variable=KEY)
    given: dict[str, Any] = {
        "url": server.url,
        "model": "a-judge",
        "template": JudgeTemplate(user="{prompt}: {response}"),
        "answers": WORDS,
        "timeout_s": timeout_s,
        "key_variable": KEY,
    }
    results: dict[int, ScoreResult] = {}

    def add(result: ScoreResult) -> None:
        assert result.response_id.group.prompt not in results
        results[result.response_id.group.prompt] = result

    pool = open_judges(
        settings,
        UrlJudgeInit(**given | changes),
        use=RewardUse(function="judge"),
        start_s=200.0,
        launch=ProcessLauncher(folder),
        env=lambda number: {},
        on_result=add,
        say=print,
    )
    await pool.start()
    try:
        yield Asked(pool, results, server)
    finally:
        await pool.stop()


def ask(folder: Path, *texts: str, **changes: Any) -> tuple[list[ScoreResult], Server]:
    async def scenario(server: Server) -> list[ScoreResult]:
        async with judged(folder, server, **changes) as it:
            return await it.all(*texts)

    with openai_server() as server:
        return asyncio.run(scenario(server)), server


@pytest.mark.parametrize("is_chat", [True, False])
def test_log_probs_of_the_answer_words_make_the_score(tmp_path: Path, is_chat: bool) -> None:
    template = JudgeTemplate(user="{prompt}: {response}", assistant=" so", is_chat=is_chat)
    maybe = AnswerWord(word="Never", value=0.5)
    [found], server = ask(tmp_path, "2", template=template, answers=(*WORDS, maybe))
    assert (found.outcome, found.detail) == (Outcome.OK, "")
    assert found.score == pytest.approx(0.75)
    assert found.extras == {"answer_mass": pytest.approx(0.8), "num_tokens": 7.0}
    [(path, key, body)] = server.asked
    assert key is None
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("a-judge", 0, 1)
    if is_chat:
        turns = [{"role": "user", "content": "1+1: 2"}, {"role": "assistant", "content": " so"}]
        assert (path, body["messages"]) == ("/v1/chat/completions", turns)
        assert (body["logprobs"], body["top_logprobs"]) == (True, 20)
    else:
        assert (path, body["prompt"], body["logprobs"]) == ("/v1/completions", "1+1: 2 so", 20)


@pytest.mark.parametrize("is_chat", [True, False])
def test_the_last_answer_word_of_a_text_is_the_score(tmp_path: Path, is_chat: bool) -> None:
    template = JudgeTemplate(user="{response}", is_chat=is_chat)
    texts = ["SAY Yes, or rather: No.", "SAY No? YES", "SAY yesterday, Nobody said No1, _Yes", "SAY Nothing: **yes**"]
    found, server = ask(tmp_path, *texts, template=template, writes=True, max_reply_length=33)
    assert [each.outcome for each in found] == [Outcome.OK, Outcome.OK, Outcome.INVALID, Outcome.OK]
    assert [each.score for each in found] == [0.0, 1.0, 0.0, 1.0]
    assert "the judge wrote no answer word ('Yes', 'No'): yesterday, Nobody" in found[2].detail
    assert all(body["max_tokens"] == 33 and "logprobs" not in body for _, _, body in server.asked)


def test_case_counts_where_two_answer_words_differ_only_in_it(tmp_path: Path) -> None:
    words = (AnswerWord(word="a", value=1.0), AnswerWord(word="A", value=0.5), AnswerWord(word="No", value=0.0))
    found, _ = ask(tmp_path, "SAY A or a", "SAY a or A", "SAY a? no", writes=True, answers=words)
    assert [each.score for each in found] == [1.0, 0.5, 1.0]


def test_a_reply_without_a_text_is_told(tmp_path: Path) -> None:
    [found], _ = ask(tmp_path, 'REPLY {"choices": []}', writes=True)
    assert (found.outcome, "it has no text" in found.detail) == (Outcome.ERROR, True)


def reply(*logprobs: tuple[str, object], usage: str = "{}") -> str:
    """A response to which the server replies with these tokens and log-probs."""
    listed = [{"token": token, "logprob": logprob} for token, logprob in logprobs]
    choice = {"logprobs": {"content": [{"top_logprobs": listed}]}}
    return f'REPLY {{"choices": [{json.dumps(choice)}], "usage": {usage}}}'


def test_probabilities_of_the_same_text_are_added(tmp_path: Path) -> None:
    halves = [("Yes", math.log(0.3)), ("No", math.log(0.2)), ("Yes", math.log(0.3))]
    [found], _ = ask(tmp_path, reply(*halves))
    assert (found.score, found.extras) == (pytest.approx(0.75), {"answer_mass": pytest.approx(0.8)})


@pytest.mark.parametrize("logprob", [math.nan, math.inf, -math.inf, 0.02, 1000.0, 10**400, "much"])
def test_a_log_prob_that_is_none_is_an_error(tmp_path: Path, logprob: object) -> None:
    [found], _ = ask(tmp_path, reply(("Yes", logprob), ("No", -1.0)))
    assert found.outcome is Outcome.ERROR
    assert f"'Yes' has the log-prob {repr(logprob)[:5]}" in found.detail


def test_probabilities_that_together_are_more_than_one_are_an_error(tmp_path: Path) -> None:
    [found], _ = ask(tmp_path, reply(("Yes", 0.0), ("No", 0.0)))
    assert (found.outcome, "together the probability 2" in found.detail) == (Outcome.ERROR, True)


def test_answer_words_without_any_probability_are_told(tmp_path: Path) -> None:
    [found], _ = ask(tmp_path, reply(("Yes", -9999.0), ("No", -9999.0)))
    assert found.outcome is Outcome.INVALID
    assert found.detail == "the answer words ('Yes', 'No') have the probability 0"


def test_a_score_that_is_not_finite_is_invalid(tmp_path: Path) -> None:
    words = (AnswerWord(word="Yes", value=math.inf), AnswerWord(word="No", value=0.0))
    [found], _ = ask(tmp_path, "2", answers=words)
    assert (found.outcome, found.score, found.extras) == (Outcome.INVALID, 0.0, {})
    assert found.detail == "the judge gave inf"


def test_a_reply_that_breaks_its_reader_is_an_error_at_once(tmp_path: Path) -> None:
    digits = f'{{"prompt_tokens": {"9" * 401}}}'
    texts = ["REPLY " + "[" * 100_000, reply(("Yes", -0.1), usage=digits), "2"]
    found, server = ask(tmp_path, *texts, max_requests=1)
    assert [each.outcome for each in found] == [Outcome.ERROR, Outcome.ERROR, Outcome.OK]
    for each, kind in zip(found, ["RecursionError", "OverflowError"], strict=False):
        assert f"the request to {server.url} failed: {kind}: " in each.detail


def test_what_the_server_does_wrong_is_told(tmp_path: Path) -> None:
    texts = ["VAGUE", "DENIED", "BROKEN", "EMPTY", "HANG UP", "fine"]
    found, _ = ask(tmp_path, *texts)
    outcomes = [Outcome.INVALID, *[Outcome.ERROR] * 4, Outcome.OK]
    assert [each.outcome for each in found] == outcomes
    for each, words in zip(
        found, ["likeliest tokens", "status 401", "no JSON", "it has no log-probs", "no reply from", ""], strict=True
    ):
        assert words in each.detail


def test_a_server_that_does_not_answer_is_a_timeout_and_the_judge_goes_on(tmp_path: Path) -> None:
    found, server = ask(tmp_path, "SILENT", "DRIP", timeout_s=2.0)
    assert [each.outcome for each in found] == [Outcome.TIMEOUT, Outcome.TIMEOUT]
    assert all(each.detail == f"no reply from {server.url} within 2 s" and each.seconds >= 2 for each in found)


def test_a_server_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with openai_server() as server:
        pass

    async def scenario() -> list[ScoreResult]:
        async with judged(tmp_path, server) as it:
            return await it.all("2")

    [found] = asyncio.run(scenario())
    assert found.outcome is Outcome.ERROR
    assert "ConnectionRefusedError" in found.detail


def test_no_more_requests_are_open_than_the_limit_and_what_waits_can_be_called_off(tmp_path: Path) -> None:
    async def scenario(server: Server) -> None:
        async with judged(tmp_path, server, max_requests=2) as it:
            for number in range(6):
                it.submit(number, f"GATE {number}")
            await it.until(lambda: server.num_open == 2)
            assert {each.response_id for each in it.pool.status().running} == {name(0), name(1)}
            it.pool.abort([name(0), name(4)])
            assert {number: each.outcome for number, each in it.results.items()} == dict.fromkeys(
                (0, 4), Outcome.ABORTED
            )
            server.gate.set()
            await it.until(lambda: len(it.results) == 6)
            assert [it.results[number].outcome for number in (1, 2, 3, 5)] == [Outcome.OK] * 4
            assert server.most_open == 2
            assert not any("GATE 4" in body["messages"][0]["content"] for _, _, body in server.asked)

    with openai_server() as server:
        asyncio.run(scenario(server))


def test_the_key_is_sent_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sk-very-secret")
    [fine, denied], server = ask(tmp_path, "2", "DENIED")
    assert {key for _, key, _ in server.asked} == {"Bearer sk-very-secret"}
    assert fine.outcome is Outcome.OK
    assert "wrong key Bearer ***" in denied.detail
    assert "secret" not in (tmp_path / "judge-0.log").read_text()


def test_a_key_that_no_header_can_have_is_refused_without_showing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY, "sk-very\nsecret")
    with pytest.raises(ValueError, match=f"the key in {KEY} has characters that a header cannot have$"):
        ask(tmp_path, "2")


def test_a_field_that_a_row_lacks_is_an_error(tmp_path: Path) -> None:
    [found], _ = ask(tmp_path, "2", template=JudgeTemplate(user="{response}{note}"))
    assert found.outcome is Outcome.ERROR
    assert "'note'" in found.detail


def test_the_process_imports_no_torch() -> None:
    script = "import sys, tailrace.workers.url_judge_worker; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("key", [None, "sk-1"])
def test_a_worker_elsewhere_gets_the_key_by_its_environment(
    tmp_path: Path, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ray actor does not have the variables of the controller."""
    monkeypatch.delenv(KEY, raising=False)
    if key is not None:
        monkeypatch.setenv(KEY, key)
    specs: list[WorkerSpec] = []

    class Elsewhere:
        shares_files = False

        def __call__(self, spec: WorkerSpec, *, hear: Hear, lose: Lose) -> WorkerHandle:
            specs.append(spec)
            return ProcessLauncher(tmp_path)(spec, hear=hear, lose=lose)

    async def scenario() -> None:
        settings = JudgeSettings(model="a-judge", url="http://127.0.0.1:1", api_key_variable=KEY)
        pool = open_judges(
            settings,
            UrlJudgeInit(url="http://127.0.0.1:1", model="a-judge", template=JudgeTemplate(user="{response}")),
            use=RewardUse(function="judge"),
            start_s=200.0,
            launch=Elsewhere(),
            env=lambda number: {"CUDA_VISIBLE_DEVICES": "0"},
            on_result=print,
            say=print,
        )
        await pool.start()
        await pool.stop()

    asyncio.run(scenario())
    assert [dict(spec.env) for spec in specs] == [{} if key is None else {KEY: key}]
