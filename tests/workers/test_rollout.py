from __future__ import annotations

from collections import deque

import pytest

from engines.rollouts import make_request, random_prompt
from tailrace.config.settings import ModelSettings, RolloutSettings
from tailrace.data.models import resolve_model
from tailrace.workers.messages import Forget, Forgotten, Generate, Report, RolloutInit
from tailrace.workers.rollout import RolloutWorker, make_engine


class WaitsForEver(Exception):
    pass


class Script:
    """A link whose messages come at fixed places between steps; ``None``: none has come, take a step."""

    def __init__(self, *messages: object) -> None:
        self._messages = deque(messages)
        self.sent: list[object] = []

    def receive(self, timeout: float | None = None) -> object | None:
        if self._messages:
            return self._messages.popleft()
        if timeout is None:
            raise WaitsForEver
        return None

    def send(self, message: object) -> None:
        self.sent.append(message)


def test_what_has_finished_is_reported_although_all_others_are_called_off() -> None:
    rollout = RolloutSettings(threads=1, max_running=4, progress_interval_s=1000.0)
    init = RolloutInit(
        checkpoint=resolve_model("tiny-arith"),
        model=ModelSettings(device="cpu"),
        rollout=rollout,
        max_length=64,
        seed=0,
    )
    prompt = random_prompt(0, 4) % 8
    short = make_request(0, prompt=prompt, budget=40, forced_length=2)
    long = make_request(1, prompt=prompt, budget=40, forced_length=40)
    link = Script(Generate(requests=(short, long)), None, None, None, Forget(trajectories=(long.trajectory,)), None)
    with pytest.raises(WaitsForEver):
        RolloutWorker(link, init, make_engine(init)).run()  # type: ignore[arg-type]
    reports = [message for message in link.sent if isinstance(message, Report)]
    assert [output.segment.trajectory for report in reports for output in report.outputs] == [short.trajectory]
    prefill = reports[-1].prefill
    assert prefill is not None
    assert prefill.num_tokens == 2 * 3, "all tokens of both prompts but the last"
    assert [message.lengths for message in link.sent if isinstance(message, Forgotten)] == [((long.trajectory, 3),)]
