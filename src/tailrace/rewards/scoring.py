"""One part of the score of a response: every function of that part. Any result or failure becomes a `ScoreResult`.

Weighted scores are added. The first function that fails decides the outcome, and those after it are not called. A
function may have no opinion on a response; where none has one, the outcome is `abstained`. Numbers beside `score`
become extras, under their own name, or `function/name` where the run has several functions; then each function's own
score, without its weight, is there too, as `function/score`. `source/NAME` is the total for prompts of that source.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from types import TracebackType
from typing import Any, Self

from tailrace.core.outcomes import Outcome
from tailrace.rewards.binding import RewardFunction
from tailrace.rewards.score_task import TIMES, ProgramTimes, RewardUse, ScoreResult, ScoreTask
from tailrace.rewards.shapes import NotApplicable

_MAX_TRACEBACKS = 20


class InvalidScore(Exception):
    """A function returned something that is not a finite number."""


class Scorer:
    """Owns the loaded functions and the event loop in which asynchronous ones run."""

    def __init__(self, functions: Sequence[tuple[RewardUse, RewardFunction]]) -> None:
        self._functions = functions
        short = labels([use.function for use, _ in functions])
        self._names = {use.function: {use.function, name} for (use, _), name in zip(functions, short, strict=True)}
        """Names by which a task may ask for each function."""
        self._runner = asyncio.Runner()
        self._num_tracebacks = 0
        self.ran_out_of_memory = False

    @classmethod
    def load(cls, uses: Sequence[RewardUse]) -> Self:
        if not uses:
            raise ValueError("reward.functions is empty: name at least one function")
        return cls([(use, RewardFunction.load(use.function, use.columns, use.options)) for use in uses])

    def score(self, task: ScoreTask, on_call: Callable[[float], None] = lambda limit_s: None) -> ScoreResult:
        """``on_call`` is told the time limit of each function before it is called."""
        started = time.monotonic()
        outcome, total, detail, num_scores = Outcome.OK, 0.0, "", 0
        extras: dict[str, float] = {}
        times: ProgramTimes | None = None
        for use, function in self._asked_for(task):
            try:
                returned = self._call(use, function, task, on_call)
                score, numbers = read_score(returned)
            except NotApplicable:
                continue
            except InvalidScore as error:
                outcome, detail = Outcome.INVALID, f"reward function {function.spec!r} {error}"
                break
            except BaseException as error:  # noqa: BLE001  a user's function may raise anything, SystemExit too
                self.ran_out_of_memory |= isinstance(error, MemoryError)
                self._print_traceback()
                outcome, detail = Outcome.ERROR, f"reward function {function.spec!r} raised {_describe(error)}"
                break
            num_scores += 1
            times = read_times(returned) or times
            total += use.weight * score
            extras |= labelled(use, score, numbers)
        if outcome is Outcome.OK and not num_scores:
            outcome, detail = Outcome.ABSTAINED, "no reward function applies to this response"
        if outcome is Outcome.OK:
            extras |= total_of_source(task.source, total)
        return ScoreResult(
            response_id=task.response_id,
            outcome=outcome,
            score=total if outcome is Outcome.OK else 0.0,
            extras=extras,
            detail=detail,
            seconds=time.monotonic() - started,
            case_times=times if outcome is Outcome.OK else None,
        )

    def close(self) -> None:
        self._runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _asked_for(self, task: ScoreTask) -> list[tuple[RewardUse, RewardFunction]]:
        return [
            (use, function)
            for use, function in self._functions
            if not task.rewards or self._names[use.function] & set(task.rewards)
        ]

    def _call(
        self, use: RewardUse, function: RewardFunction, task: ScoreTask, on_call: Callable[[float], None]
    ) -> object:
        limit_s, call = function.prepare(task)
        on_call(use.timeout_s if limit_s is None else limit_s)
        result = call()
        return function.shape.result(self._runner.run(_awaited(result)) if inspect.isawaitable(result) else result)

    def _print_traceback(self) -> None:
        self._num_tracebacks += 1
        if self._num_tracebacks <= _MAX_TRACEBACKS:  # the same mistake in every response must not fill the disk
            traceback.print_exc()


def read_score(result: object) -> tuple[float, dict[str, float]]:
    """Return the score and the other finite numbers in a function's result; `InvalidScore` if it has no score."""
    if not isinstance(result, Mapping):
        return _number(result), {}
    if "score" not in result:
        raise InvalidScore(f"returned a dict without 'score': its keys are {', '.join(map(str, result)) or 'none'}")
    extras: dict[str, float] = {}
    for name, value in result.items():
        try:
            extras[str(name)] = _number(value)
        except InvalidScore:
            continue  # text and lists beside the score are for the function's author, not for metrics
    extras.pop("score", None)
    return _number(result["score"]), extras


def read_times(result: object) -> ProgramTimes | None:
    """Return what a built-in reward tells about the times of its test cases; None if it tells nothing."""
    found = result.get(TIMES) if isinstance(result, Mapping) else None
    return found if isinstance(found, ProgramTimes) else None


def _number(value: Any) -> float:
    if not isinstance(value, int | float) and hasattr(value, "item") and _num_elements(value) == 1:
        value = value.item()  # scalars of numpy and tensors of one element
    if not isinstance(value, int | float):
        raise InvalidScore(f"returned {_shown(value)}, expected a number or a dict with 'score'")
    if not math.isfinite(value):
        raise InvalidScore(f"returned {value}, expected a finite number")
    return float(value)


def _num_elements(array: Any) -> int:
    """Return the number of elements of a torch tensor or a NumPy array. Neither package is imported here."""
    return int(array.numel() if hasattr(array, "numel") else getattr(array, "size", 1))


def _shown(value: object) -> str:
    text = repr(value)
    return f"{text[:80]} ({type(value).__name__})"


def _describe(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1:]
    place = f" ({frame[0].filename}, line {frame[0].lineno})" if frame else ""
    return f"{type(error).__name__}: {error}{place}"


def labels(specs: Sequence[str]) -> list[str]:
    """Return a short name for each function: its own name, or its whole spec if two functions have the same name."""
    names = [_own_name(spec) for spec in specs]
    return [name if names.count(name) == 1 else spec for name, spec in zip(names, specs, strict=True)]


def _own_name(spec: str) -> str:
    name = spec.rpartition(":")[2]
    # A function handed over as an object is kept as reward-NAME-HASH.pickle.
    return PurePath(name).stem.removeprefix("reward-").rpartition("-")[0] or name if name.endswith(".pickle") else name


def labelled(use: RewardUse, score: float, numbers: Mapping[str, float]) -> dict[str, float]:
    """The extras of a function that returned this score and these other numbers."""
    if not use.label:
        return dict(numbers)
    return {f"{use.label}/score": score} | {f"{use.label}/{name}": value for name, value in numbers.items()}


def total_of_source(source: str, total: float) -> dict[str, float]:
    return {f"source/{source}": total} if source else {}


def weighted(result: ScoreResult, use: RewardUse, source: str) -> ScoreResult:
    """A result of the only function of its part, with its weight."""
    if result.outcome is not Outcome.OK:
        return result
    score = use.weight * result.score
    extras = labelled(use, result.score, result.extras) | total_of_source(source, score)
    return replace(result, score=score, extras=extras)


async def _awaited(result: Awaitable[object]) -> object:
    return await result
