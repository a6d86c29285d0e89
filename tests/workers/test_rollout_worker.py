from __future__ import annotations

from collections import deque
from pathlib import Path

import pytest

from engines.rollouts import make_request, random_prompt
from tailrace.config.model_settings import ModelSettings
from tailrace.config.rollout_settings import RolloutSettings
from tailrace.core.ids import Version
from tailrace.data.models import resolve_model
from tailrace.engines.native.checkpoint import CheckpointTensors
from tailrace.weights.address import SHARED_MEMORY, ChannelAddress
from tailrace.weights.slots.shared_memory import create
from tailrace.weights.slots.two_slots import layout_of
from tailrace.workers.messages import (
    Abort,
    Aborted,
    Generate,
    Pull,
    Pulled,
    PullFailed,
    Release,
    Released,
    Report,
    RolloutInit,
)
from tailrace.workers.rollout_worker import RolloutWorker, make_engine


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


def make_init(rollout: RolloutSettings) -> RolloutInit:
    return RolloutInit(
        checkpoint=resolve_model("tiny-arith"),
        model=ModelSettings(device="cpu"),
        rollout=rollout,
        max_length=64,
        seed=0,
    )


def publish(path: Path, version: int) -> ChannelAddress:
    weights = CheckpointTensors(resolve_model("tiny-arith"))
    writer = create(path, layout_of(weights.items()))
    writer.publish(Version(version), weights.items())
    return writer.address


def test_what_has_finished_is_reported_although_all_others_are_called_off() -> None:
    rollout = RolloutSettings(threads=1, max_running=4, progress_interval_s=1000.0)
    init = make_init(rollout)
    prompt = random_prompt(0, 4) % 8
    short = make_request(0, prompt=prompt, budget=40, forced_length=2)
    long = make_request(1, prompt=prompt, budget=40, forced_length=40)
    link = Script(Generate(requests=(short, long)), None, None, None, Abort(responses=(long.response_id,)), None)
    with pytest.raises(WaitsForEver):
        RolloutWorker(link, init, make_engine(init)).run()
    reports = [message for message in link.sent if isinstance(message, Report)]
    assert [output.segment.response_id for report in reports for output in report.outputs] == [short.response_id]
    prefill = reports[-1].prefill
    assert prefill is not None
    assert prefill.num_tokens == 2 * 3, "all tokens of both prompts but the last"
    assert [message.lengths for message in link.sent if isinstance(message, Aborted)] == [((long.response_id, 3),)]


def test_a_worker_pulls_from_the_address_that_each_message_names(tmp_path: Path) -> None:
    first, second = publish(tmp_path / "first", 3), publish(tmp_path / "second", 1)
    link = Script(Pull(version=Version(2), channel=first), Pull(version=Version(1), channel=second))
    init = make_init(RolloutSettings(threads=1, max_running=4))
    with pytest.raises(WaitsForEver):
        RolloutWorker(link, init, make_engine(init)).run()  # type: ignore[arg-type]
    assert [message.version for message in link.sent if isinstance(message, Pulled)] == [3, 1]


@pytest.mark.parametrize("is_released", [False, True])
def test_a_pull_without_a_channel_fails_and_the_next_one_succeeds(tmp_path: Path, is_released: bool) -> None:
    """The trainer has ended, or was restarted and has not published yet; then it has."""
    weights = CheckpointTensors(resolve_model("tiny-arith"))
    empty = create(tmp_path / "empty", layout_of(weights.items()))
    missing = ChannelAddress(kind=SHARED_MEMORY, location=str(tmp_path / "missing"))
    channels = (missing, empty.address, publish(tmp_path / "there", 2))
    pulls = [Pull(version=Version(1), channel=channel) for channel in channels]
    init = make_init(RolloutSettings(threads=1, max_running=4, progress_interval_s=1000.0))
    request = make_request(0, prompt=random_prompt(0, 4) % 8, budget=40, forced_length=2)
    link = Script(*([Release()] if is_released else []), *pulls, Generate(requests=(request,)))
    with pytest.raises(WaitsForEver):
        RolloutWorker(link, init, make_engine(init), sleep=lambda _: None).run()
    answers = [message for message in link.sent if not isinstance(message, Released)]
    assert [type(message) for message in answers] == [PullFailed, PullFailed, Pulled, Report]
    assert answers[1] == PullFailed(reason="version 1 is not published; the channel holds none yet")
    assert [output.segment.version for output in answers[-1].outputs] == [2]  # type: ignore[attr-defined]


def test_a_worker_pauses_after_each_pull_that_fails(tmp_path: Path) -> None:
    """Meanwhile the controller may hear that the trainer has ended. How often it asks again is its decision."""
    missing = ChannelAddress(kind=SHARED_MEMORY, location=str(tmp_path / "missing"))
    link = Script(*[Pull(version=Version(1), channel=missing)] * 100)
    init = make_init(RolloutSettings(threads=1, max_running=4))
    pauses: list[float] = []
    with pytest.raises(WaitsForEver):
        RolloutWorker(link, init, make_engine(init), sleep=pauses.append).run()
    assert len(link.sent) == len(pauses) == 100
    assert min(pauses) > 0
