"""The process of a judge whose model runs behind an OpenAI-compatible server: sends requests and reads the replies.

* Every response is a request of its own, in a thread of its own. At most ``max_requests`` are open at the same time.
* A request that is not answered in time has the outcome ``timeout``, and its thread is left alone: it may hang in the
  resolver. What the server does wrong is the outcome ``error``.
* The key of the server is read from the environment of the worker. It is in no text that the run writes.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.core.ids import ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.data.detokenizer import Decode
from tailrace.judge.server import ServerFailed, ServerRequest
from tailrace.judge.server_question import NoAnswerWord, ServerQuestion, UnreadableReply
from tailrace.rewards.score_task import ScoreResult
from tailrace.store.record_frame import DamagedStore
from tailrace.workers.judge_messages import (
    JudgeReady,
    JudgeRefused,
    JudgeResponses,
    PassStarted,
    ResponsesJudged,
    UrlJudgeInit,
)
from tailrace.workers.judged_text import fields_of, no_such_column, text_of
from tailrace.workers.link import Link
from tailrace.workers.reward_messages import ResponseUnreadable, SkipTasks, TaskSkipped
from tailrace.workers.reward_tasks import RewardTask

_SHOWN = 200


@dataclass(slots=True, eq=False)
class _Open:
    """A request that is open."""

    response_id: ResponseId
    request: ServerRequest
    started: float = field(default_factory=time.monotonic)


class UrlJudge:
    """Owns the requests. Threads only deliver replies: all else is done by the thread that runs ``run``."""

    def __init__(self, link: Link, init: UrlJudgeInit, *, key: str | None, decode: Decode | None) -> None:
        self._link, self._init, self._key, self._decode = link, init, key, decode
        self._question = ServerQuestion(
            model=init.model,
            template=init.template,
            answers=init.answers,
            writes=init.writes,
            max_reply_length=init.max_reply_length,
        )
        self._waiting: deque[tuple[ResponseId, Mapping[str, str]]] = deque()
        self._open: dict[ResponseId, _Open] = {}
        self._changed = threading.Condition()
        """Guards what is open and what waits."""

    def run(self) -> None:
        threading.Thread(target=self._end_overdue, name="overdue", daemon=True).start()
        while True:
            match self._link.receive():
                case JudgeResponses(tasks=tasks):
                    for task in tasks:
                        self._read(task)
                case SkipTasks(responses=responses):
                    self._skip(responses)
                case None:
                    pass
                case message:
                    raise TypeError(f"unknown message {message!r}")

    def _read(self, task: RewardTask) -> None:
        """Make the fields of a response and let it wait for its request."""
        try:
            fields = fields_of(text_of(task, self._decode))
        except (OSError, DamagedStore) as error:
            self._link.send(ResponseUnreadable(response_id=task.response_id, reason=str(error)))
            return
        with self._changed:
            self._waiting.append((task.response_id, fields))
        self._start_next()

    def _skip(self, responses: frozenset[ResponseId]) -> None:
        with self._changed:
            skipped = [response for response, _ in self._waiting if response in responses]
            self._waiting = deque(each for each in self._waiting if each[0] not in responses)
        for response in skipped:
            self._link.send(TaskSkipped(response_id=response))

    def _start_next(self) -> None:
        """Start the requests that may be open beside those that are."""
        while True:
            with self._changed:
                if not self._waiting or len(self._open) >= self._init.max_requests:
                    return
                response_id, fields = self._waiting.popleft()
                address = self._init.url.rstrip("/") + self._question.path
                opened = _Open(response_id, ServerRequest(address, timeout_s=self._init.timeout_s))
                self._open[response_id] = opened
                # Before the request starts, so that it comes before its result.
                self._link.send(PassStarted(responses=(response_id,)))
                self._changed.notify_all()
            threading.Thread(target=self._ask, args=(opened, fields), daemon=True).start()

    def _ask(self, opened: _Open, fields: Mapping[str, str]) -> None:
        score, extras, outcome, detail = 0.0, {}, Outcome.OK, ""
        try:
            found = self._question.read(opened.request.post(self._question.body(fields), key=self._key))
            if math.isfinite(found.score):
                score, extras = found.score, dict(found.extras)
            else:
                outcome, detail = Outcome.INVALID, f"the judge gave {found.score}"
        except NoAnswerWord as error:
            outcome, detail = Outcome.INVALID, str(error)
        except KeyError as error:
            outcome, detail = Outcome.ERROR, no_such_column(error)
        except UnreadableReply as error:
            outcome, detail = Outcome.ERROR, f"the reply of {self._init.url} cannot be used: {error}"
        except ServerFailed as error:
            outcome, detail = self._failure(opened, error)
        # What a strange reply or address can raise besides: RecursionError (JSON nested too deeply), OverflowError (an
        # integer too large for a float), UnicodeError (a host name too long). Its response gets an answer at once.
        except Exception as error:  # noqa: BLE001  a thread that ends without an answer would hold up its response
            reason = f"{type(error).__name__}: {error}"[:_SHOWN]
            outcome, detail = Outcome.ERROR, f"the request to {self._init.url} failed: {reason}"
        self._finish(opened, outcome, detail, score, extras)

    def _failure(self, opened: _Open, error: ServerFailed) -> tuple[Outcome, str]:
        if isinstance(error.__cause__, TimeoutError) and _age_s(opened) >= self._init.timeout_s:
            return Outcome.TIMEOUT, self._overdue()
        return Outcome.ERROR, str(error)

    def _overdue(self) -> str:
        return f"no reply from {self._init.url} within {self._init.timeout_s:g} s"

    def _finish(
        self,
        opened: _Open,
        outcome: Outcome,
        detail: str,
        score: float = 0.0,
        extras: Mapping[str, float] | None = None,
    ) -> None:
        """Report a result, unless this request has one."""
        with self._changed:
            if self._open.get(opened.response_id) is not opened:
                return
            del self._open[opened.response_id]
        seconds = _age_s(opened)
        result = ScoreResult(
            response_id=opened.response_id,
            outcome=outcome,
            score=score,
            extras=extras or {},
            detail=detail.replace(self._key, "***") if self._key else detail,
            seconds=seconds,
        )
        self._link.send(ResponsesJudged(results=(result,), seconds=seconds))
        self._start_next()

    def _end_overdue(self) -> None:
        """Give up requests as their time runs out. A server may send a byte now and then and never end."""
        while True:
            with self._changed:
                oldest = next(iter(self._open.values()), None)
                if oldest is None:
                    self._changed.wait()
                    continue
                left_s = self._init.timeout_s - _age_s(oldest)
                if left_s > 0:
                    self._changed.wait(left_s)
                    continue
            self._finish(oldest, Outcome.TIMEOUT, self._overdue())
            oldest.request.give_up()


def _age_s(opened: _Open) -> float:
    return time.monotonic() - opened.started


def serve(link: Link, init: UrlJudgeInit) -> None:
    key = os.environ.get(init.key_variable, "").strip() or None
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        link.send(JudgeRefused(reason=f"the key in {init.key_variable} has characters that a header cannot have"))
        return
    decode = None if init.detokenizer is None else init.detokenizer.load()
    link.send(JudgeReady())
    UrlJudge(link, init, key=key, decode=decode).run()
