"""Makes the pool of judges that the settings ask for: of workers that hold the model, or that ask a server."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping

from tailrace.config.judge_settings import JudgeSettings
from tailrace.rewards.score_task import RewardUse, ScoreResult
from tailrace.runtime.launchers.worker import OPENMP_PASSIVE_WAIT, Launcher
from tailrace.runtime.rewards.judge_pool import MOST_AHEAD, PICK_UP_S, JudgePool
from tailrace.runtime.rewards.judge_slot import JudgeLimits
from tailrace.workers.judge_messages import JudgeInit, UrlJudgeInit

_SERVER_GRACE_S = 15.0
"""Seconds after the limit of a request in which its worker must say that it gave it up."""


def open_judges(
    judge: JudgeSettings,
    init: JudgeInit | UrlJudgeInit,
    *,
    use: RewardUse,
    start_s: float,
    launch: Launcher,
    env: Callable[[int], Mapping[str, str]],
    on_result: Callable[[ScoreResult], None],
    say: Callable[[str], None],
    recover: Callable[[], Awaitable[None]] | None = None,
) -> JudgePool:
    """``env``: of the devices of the judge with this number."""
    if isinstance(init, UrlJudgeInit):
        key = os.environ.get(judge.api_key_variable)
        # On another machine the variable is not there by itself.
        own = {} if key is None else {judge.api_key_variable: key}
        return JudgePool(
            init,
            use=use,
            num_judges=judge.workers,
            limits=JudgeLimits(start_s=start_s, pass_s=judge.timeout_s + _SERVER_GRACE_S, pick_up_s=PICK_UP_S),
            most_ahead=judge.max_requests,
            launch=launch,
            env=lambda number: own,
            on_result=on_result,
            say=say,
        )
    return JudgePool(
        init,
        use=use,
        num_judges=judge.workers,
        limits=JudgeLimits(start_s=start_s, pass_s=judge.timeout_s, pick_up_s=PICK_UP_S),
        most_ahead=MOST_AHEAD,
        launch=launch,
        env=lambda number: {**OPENMP_PASSIVE_WAIT, **env(number)},
        on_result=on_result,
        say=say,
        recover=recover,
    )
