"""The judge's process: reads what has come, computes what waits together, and answers after each pass.

* Responses and questions are computed in the order of arrival, as many in a pass as fit (`judge/passes.py`). Between
  two passes it reads its messages, so what was called off meanwhile is not computed.
* Every response is answered: one that is too long, or for which memory is too short, by the outcome ``error``.
* A pass does not end early. Whoever waits for it has a time limit, which begins with ``PassStarted``, and may kill it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.data.detokenizer import Decode
from tailrace.data.tokenizer import load_tokenizer
from tailrace.judge.judge import Judge, JudgeScore, MemoryBudget
from tailrace.judge.model import load_judge_model
from tailrace.judge.passes import next_pass
from tailrace.judge.profiling import measure_profile
from tailrace.judge.questions import Question
from tailrace.rewards.score_task import ScoreResult
from tailrace.store.record_frame import DamagedStore
from tailrace.trainer.model.model_files import resolve_device
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
from tailrace.workers.judged_text import fields_of, no_such_column, text_of
from tailrace.workers.link import Link
from tailrace.workers.reward_messages import ResponseUnreadable, SkipTasks, TaskSkipped
from tailrace.workers.reward_tasks import RewardTask


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    response_id: ResponseId
    tokens: NDArray[np.int32]
    question: Question | None = None
    """None: a response to be scored."""


class JudgeWorker:
    """Owns what waits."""

    def __init__(self, link: Link, judge: Judge, *, max_tokens: int, decode: Decode | None = None) -> None:
        self._link, self._judge, self._decode = link, judge, decode
        self._max_tokens = max_tokens
        self._waiting: list[_Waiting] = []

    def run(self) -> None:
        while True:
            while (message := self._link.receive(0 if self._waiting else None)) is not None:
                self._handle(message)
            self._compute_next()

    def _handle(self, message: object) -> None:
        match message:
            case JudgeResponses(tasks=tasks):
                for task in tasks:
                    self._read(task)
            case ReadLogprobs(questions=questions):
                for response_id, question in questions:
                    self._accept(response_id, question)
            case SkipTasks(responses=responses):
                self._skip(responses)
            case _:
                raise TypeError(f"unknown message {message!r}")

    def _read(self, task: RewardTask) -> None:
        """Make the text of a response and let it wait, or say why it cannot be scored."""
        try:
            fields = fields_of(text_of(task, self._decode))
        except (OSError, DamagedStore) as error:
            self._link.send(ResponseUnreadable(response_id=task.response_id, reason=str(error)))
            return
        try:
            tokens = self._judge.read(fields)
        except KeyError as error:
            self._fail([task.response_id], no_such_column(error))
            return
        if (reason := self._too_long(len(tokens))) is not None:
            self._fail([task.response_id], reason)
        else:
            self._waiting.append(_Waiting(response_id=task.response_id, tokens=tokens))

    def _accept(self, response_id: ResponseId, question: Question) -> None:
        reason = self._too_long(len(question.tokens_L))
        try:
            question.check(self._judge.model.vocab_size)
        except ValueError as error:
            reason = str(error)
        if reason is not None:
            self._link.send(QuestionRefused(response_id=response_id, reason=reason))
        else:
            self._waiting.append(_Waiting(response_id=response_id, tokens=question.tokens_L, question=question))

    def _too_long(self, length: int) -> str | None:
        if self._judge.fits(length, length):
            return None
        return f"{length} tokens are more than the judge can read with its model and its memory budget"

    def _skip(self, responses: frozenset[ResponseId]) -> None:
        for each in self._waiting:
            if each.response_id in responses:
                self._link.send(TaskSkipped(response_id=each.response_id))
        self._waiting = [each for each in self._waiting if each.response_id not in responses]

    def _compute_next(self) -> None:
        """Compute the next pass, if something waits: responses, or questions, as what has waited longest."""
        if not self._waiting:
            return
        is_question = self._waiting[0].question is not None
        alike = [each for each in self._waiting if (each.question is not None) == is_question]
        count = next_pass([len(each.tokens) for each in alike], self._judge.fits, max_tokens=self._max_tokens)
        chosen = alike[:count]
        taken = set(map(id, chosen))
        self._waiting = [each for each in self._waiting if id(each) not in taken]
        self._link.send(PassStarted(responses=tuple(each.response_id for each in chosen)))
        self._in_memory(chosen, self._answer if is_question else self._score)

    def _in_memory(self, chosen: Sequence[_Waiting], compute: Callable[[Sequence[_Waiting]], None]) -> None:
        """Compute a pass; if memory is too short for it, in two halves."""
        try:
            compute(chosen)
            return
        except torch.OutOfMemoryError as error:
            reason = str(error).split("\n")[0]
        if len(chosen) > 1:
            half = len(chosen) // 2
            self._in_memory(chosen[:half], compute)
            self._in_memory(chosen[half:], compute)
            return
        [only] = chosen
        if only.question is None:
            self._fail([only.response_id], reason)
        else:
            self._link.send(QuestionRefused(response_id=only.response_id, reason=reason))

    def _score(self, chosen: Sequence[_Waiting]) -> None:
        start = time.monotonic()
        scores = self._judge.score([each.tokens for each in chosen])
        seconds = time.monotonic() - start
        results = (_result(each, score, seconds) for each, score in zip(chosen, scores, strict=True))
        self._link.send(
            ResponsesJudged(
                results=tuple(results),
                num_tokens=sum(len(each.tokens) for each in chosen),
                num_resident=self._judge.model.offload.num_resident,
                seconds=seconds,
            )
        )

    def _answer(self, chosen: Sequence[_Waiting]) -> None:
        start = time.monotonic()
        found = self._judge.logprobs([each.question for each in chosen if each.question is not None])
        self._link.send(
            LogprobsRead(
                found=tuple((each.response_id, logprobs) for each, logprobs in zip(chosen, found, strict=True)),
                num_tokens=sum(len(each.tokens) for each in chosen),
                num_resident=self._judge.model.offload.num_resident,
                seconds=time.monotonic() - start,
            )
        )

    def _fail(self, responses: Sequence[ResponseId], reason: str) -> None:
        results = tuple(
            ScoreResult(response_id=each, outcome=Outcome.ERROR, score=0.0, detail=reason, seconds=0.0)
            for each in responses
        )
        num_resident = self._judge.model.offload.num_resident
        self._link.send(ResponsesJudged(results=results, num_tokens=0, num_resident=num_resident, seconds=0.0))


def _result(judged: _Waiting, found: JudgeScore, seconds: float) -> ScoreResult:
    extras = {"num_tokens": float(len(judged.tokens))}
    if found.answer_mass is not None:
        extras["answer_mass"] = found.answer_mass
    is_finite = math.isfinite(found.score)
    return ScoreResult(
        response_id=judged.response_id,
        outcome=Outcome.OK if is_finite else Outcome.INVALID,
        score=found.score if is_finite else 0.0,
        extras=extras if is_finite else {},
        detail="" if is_finite else f"the judge's model gave {found.score}",
        seconds=seconds,
    )


def open_judge(init: JudgeInit) -> tuple[Judge, JudgeReady]:
    """``ValueError`` or ``OSError`` if the model or the template cannot be used."""
    if init.threads is not None:
        torch.set_num_threads(init.threads)
    device, budget = resolve_device(init.device), None
    model = load_judge_model(
        init.model_path,
        device,
        dtype=getattr(torch, init.dtype),
        has_reward_head=not init.answers,
        num_resident=None if init.budget_bytes is None else 0,
        is_packed=init.is_packed,
    )
    profile = init.profile
    if init.budget_bytes is not None:
        profile = profile or measure_profile(model, budget_bytes=init.budget_bytes)
        budget = MemoryBudget(num_bytes=init.budget_bytes, profile=profile)
        if budget.resident_layers(1, 1) is None:
            least = profile.device_bytes(0, longest=1, num_tokens=1)
            raise ValueError(f"a judge of {init.model_path} needs at least {least:,} bytes, not {init.budget_bytes:,}")
    judge = Judge(model, init.template, load_tokenizer(init.model_path), answers=init.answers, budget=budget)
    offload = model.offload
    ready = JudgeReady(num_layers=offload.num_layers, num_resident=offload.num_resident, profile=profile)
    return judge, ready


def serve(link: Link, init: JudgeInit) -> None:
    try:
        judge, ready = open_judge(init)
    except (ValueError, OSError) as error:
        link.send(JudgeRefused(reason=str(error)))
        return
    decode = None if init.detokenizer is None else init.detokenizer.load()
    link.send(ready)
    JudgeWorker(link, judge, max_tokens=init.max_tokens, decode=decode).run()
