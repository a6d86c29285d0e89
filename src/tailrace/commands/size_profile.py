"""The ``profile --parallel-sizes`` command: measure an instance of each parallel size, and what a change of the size
takes.

Each size is measured in a process of its own, since an engine fixes its size when it starts. The process, and whatever
it has started, is ended when it has answered, or at a limit.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tailrace.commands.profile import Profiled, measurable_model, measure, profiled_init
from tailrace.commands.train import Say
from tailrace.config.load import SettingsError
from tailrace.config.parallel_layouts import settings_by_size
from tailrace.config.parallel_profile import ParallelProfile, SizeProfile
from tailrace.config.settings import Settings
from tailrace.engines.contract import Engine
from tailrace.engines.registry import ENGINES, choose_engine
from tailrace.runtime.gpus import card_defaults
from tailrace.runtime.gpus.found_cards import find_card
from tailrace.runtime.launchers.process import ProcessLauncher
from tailrace.runtime.launchers.worker import OPENMP_PASSIVE_WAIT, Launcher, WorkerSpec
from tailrace.workers.link import Link
from tailrace.workers.messages import RolloutInit

LIMIT_S = 3600.0
"""Longest time for one size, after its start. The start has the limit of a run (``limits.start_s``)."""
Answer = TypeVar("Answer")
_ENTRY = "tailrace.commands.size_profile:serve"


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedProfile:
    profile: ParallelProfile
    errors: tuple[float, ...]
    """For each size, the mean error of its cost model on load points that it was not fitted to, as a share."""

    def lines(self) -> list[str]:
        known = self.profile
        rows = [
            f"{each.size:>4} {each.kv_tokens:>12,} {_step_ms(each, 1):>10.2f} {_step_ms(each, each.max_running):>10.2f}"
            f" {error:>6.1%} {each.start_s:>8.1f} {_seconds(each.release_s):>8} {_seconds(each.wake_s):>8}"
            for each, error in zip(known.sizes, self.errors, strict=True)
        ]
        return [
            f"{known.model}, {known.dtype}, {known.engine} on {known.device}",
            "size    KV tokens   ms/step:   ms/step:  error  start: s release:    wake:",
            "                   1 response  all run                        s         s",
            *rows,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Task:
    """First message to a process that measures."""

    settings: Settings
    """With one parallel size."""
    init: RolloutInit
    repeats: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Started:
    """The engine could work now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    line: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refused:
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    profiled: Profiled
    max_running: int
    release_s: float | None
    wake_s: float | None


def profile_sizes(settings: Settings, *, repeats: int, say: Say) -> SizedProfile:
    """Measure each of ``rollout.parallel_sizes``; ``SettingsError`` if that cannot be done."""
    try:
        model = measurable_model(settings)
        engine = choose_engine(settings, model).engine
        may_release = ENGINES[engine].capabilities_on(settings.model.device).releases_memory
        if find_card(settings) is None:
            settings = card_defaults.on_cpu(settings)
        sized = sorted(map(_alone, settings_by_size(settings)), key=lambda each: each.rollout.tensor_parallel_size)
        tasks = [
            _Task(settings=each, init=profiled_init(each, model, may_release=may_release), repeats=repeats)
            for each in sized
        ]
        with tempfile.TemporaryDirectory() as logs:
            measured = asyncio.run(_all(tasks, ProcessLauncher(Path(logs)), say))
    except (OSError, ValueError) as error:
        raise SettingsError(str(error)) from error
    return SizedProfile(
        profile=ParallelProfile(
            model=settings.model.path,
            dtype=settings.model.dtype,
            engine=engine,
            device=str(measured[0][1].profiled.setting["device"]),
            sizes=tuple(size for size, _ in measured),
        ),
        errors=tuple(answer.profiled.profile.error for _, answer in measured),
    )


def _alone(settings: Settings) -> Settings:
    """The settings of one size, as if the run had no other, with the numbers that depend on the card."""
    rollout = settings.rollout.model_copy(update={"parallel_sizes": (), "parallel_profile": None})
    found, _ = card_defaults.resolve(settings.model_copy(update={"rollout": rollout}))
    return found


async def _all(tasks: list[_Task], launch: Launcher, say: Say) -> list[tuple[SizeProfile, _Answer]]:
    return [await _one(task, launch, say) for task in tasks]


async def _one(task: _Task, launch: Launcher, say: Say) -> tuple[SizeProfile, _Answer]:
    """Measure one size. ``ValueError`` if its process ends before, or takes longer than it may."""
    size = task.settings.rollout.tensor_parallel_size
    loop = asyncio.get_running_loop()
    started: asyncio.Future[float] = loop.create_future()
    answered: asyncio.Future[_Answer] = loop.create_future()
    began = time.monotonic()

    def fail(reason: str) -> None:
        for future in (started, answered):
            if not future.done():
                future.set_exception(ValueError(f"parallel size {size} cannot be measured: {reason}"))
                future.exception()  # whoever still waits gets it; of the other one nobody need hear

    def hear(message: object) -> None:
        match message:
            case _Started():
                started.set_result(time.monotonic() - began)
                say(f"size {size}: started in {started.result():.1f} s")
            case _Told(line=line):
                say(f"size {size}: {line}")
            case _Refused(reason=reason):
                fail(reason)
            case _Answer():
                answered.set_result(message)

    say(f"size {size}: starting the engine")
    spec = WorkerSpec(name=f"profile-{size}", entry=_ENTRY, init=task, env=OPENMP_PASSIVE_WAIT)
    worker = launch(spec, hear=hear, lose=fail)
    try:
        start_s = await _within(started, task.settings.limits.start_s, f"the start of size {size}")
        answer = await _within(answered, LIMIT_S, f"the measurement of size {size}")
    finally:
        await worker.stop(grace_s=2.0)
    return _size_profile(size, start_s, answer), answer


async def _within(future: asyncio.Future[Answer], limit_s: float, what: str) -> Answer:
    try:
        return await asyncio.wait_for(future, limit_s)
    except TimeoutError:
        raise ValueError(f"{what} took longer than {limit_s:g} s") from None


def _size_profile(size: int, start_s: float, answer: _Answer) -> SizeProfile:
    return SizeProfile(
        size=size,
        costs=answer.profiled.profile.model,
        kv_tokens=int(answer.profiled.setting["kv_budget"]),
        max_running=answer.max_running,
        start_s=start_s,
        release_s=answer.release_s,
        wake_s=answer.wake_s,
    )


def serve(link: Link, task: _Task) -> None:
    """The process that measures one size."""
    from tailrace.workers.rollout_worker import make_engine

    engine = make_engine(task.init)
    link.send(_Started())
    try:
        found = measure(
            task.settings, task.init, engine, repeats=task.repeats, say=lambda line: link.send(_Told(line=line))
        )
    except ValueError as error:
        link.send(_Refused(reason=str(error)))
    else:
        release_s, wake_s = _change(engine)
        link.send(
            _Answer(
                profiled=found,
                max_running=task.settings.rollout.running_limit,
                release_s=release_s,
                wake_s=wake_s,
            )
        )
    link.receive(None)


def _change(engine: Engine) -> tuple[float | None, float | None]:
    """Seconds in which the engine releases its memory, and in which it takes it again; None: it cannot."""
    if not engine.capabilities.releases_memory:
        return None, None
    return _seconds_of(engine.release), _seconds_of(engine.restore)


def _seconds_of(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _step_ms(size: SizeProfile, num_running: int) -> float:
    """Milliseconds of a decode step of this many responses that fill the KV cache evenly."""
    kv_tokens = size.kv_tokens * num_running / size.max_running
    return 1e3 * size.costs.step_s(kv_tokens=kv_tokens, num_running=num_running)


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f}"
