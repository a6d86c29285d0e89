"""A judge without a model: it does what the responses say, and writes down what it does.

A number is the score. ``kill`` kills the judge, ``hang`` hangs it, ``gate`` waits for the file of that name; all in a
pass. The file says how many messages the judge must have read before the gate opens.
``ignore`` hangs it before any pass. With a file ``refuse`` it does not start.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tailrace.core.outcomes import Outcome
from tailrace.rewards.score_task import ScoreResult, ScoreTask
from tailrace.workers.judge_messages import JudgeReady, JudgeRefused, JudgeResponses, PassStarted, ResponsesJudged
from tailrace.workers.link import Link
from tailrace.workers.reward_messages import SkipTasks, TaskSkipped

ENTRY = "runtime.rewards.scripted_judge:serve"


class Judge:
    def __init__(self, link: Link, folder: Path) -> None:
        self._link, self._folder = link, folder
        self._waiting: dict[object, ScoreTask] = {}
        self._num_read = 0

    def run(self) -> None:
        while True:
            while (message := self._link.receive(0 if self._waiting else None)) is not None:
                self._handle(message)
            if any(task.response == "ignore" for task in self._waiting.values()):
                time.sleep(1000)
            self._compute()

    def _handle(self, message: object) -> None:
        self._num_read += 1
        if isinstance(message, SkipTasks):
            for response in message.responses & self._waiting.keys():
                del self._waiting[response]
                self._link.send(TaskSkipped(response_id=response))
        else:
            assert isinstance(message, JudgeResponses)
            for task in message.tasks:
                assert isinstance(task, ScoreTask)
                self._waiting[task.response_id] = task

    def _compute(self) -> None:
        tasks, self._waiting = list(self._waiting.values()), {}
        self._link.send(PassStarted(responses=tuple(task.response_id for task in tasks)))
        note(self._folder, "pass", *sorted(task.response_id.group.prompt for task in tasks))
        results = tuple(
            ScoreResult(
                response_id=task.response_id,
                outcome=Outcome.OK,
                score=self._obey(task.response),
                extras={"answer_mass": 0.5},
                seconds=0.0,
            )
            for task in tasks
        )
        self._link.send(ResponsesJudged(results=results))

    def _obey(self, text: str) -> float:
        if text == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if text == "hang":
            time.sleep(1000)
        if text == "gate":
            gate = self._folder / "gate"
            while not gate.exists():
                time.sleep(0.005)
            while self._num_read < int(gate.read_text()):
                self._handle(self._link.receive())
            return 1.0
        return float(text)


def note(folder: Path, *what: object) -> None:
    with (folder / "story").open("a") as file:
        file.write(" ".join(map(str, (os.getpid(), *what))) + "\n")


def serve(link: Link, folder: Path) -> None:
    note(folder, "start")
    if (folder / "refuse").exists():
        link.send(JudgeRefused(reason="the model is gone"))
        return
    link.send(JudgeReady())
    Judge(link, folder).run()
