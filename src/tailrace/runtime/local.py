"""A run on one machine: the controller process and its workers.

    controller   driver, coordinator, journal, payload store        (this process)
    rollout-N    one engine each                                     tailrace.workers.rollout
    training     the trainer; publishes weights in shared memory     tailrace.workers.training
    reward-N     reward functions, killable                          tailrace.workers.reward

This file only connects parts: each command goes to the adapter that performs it.
"""

from __future__ import annotations

import asyncio
import hashlib
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailrace.config.load import SettingsError
from tailrace.config.settings import Settings
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.journal import Entry
from tailrace.core.waits import Wait
from tailrace.observe.display import Display, open_display
from tailrace.observe.prediction import Prediction
from tailrace.observe.rollout_display import RolloutDisplay
from tailrace.observe.sinks import Experiment, Sinks, open_sinks
from tailrace.runtime.checkpointing import Checkpointing
from tailrace.runtime.checkpoints import Checkpoints
from tailrace.runtime.driver import Driver
from tailrace.runtime.recorder import Recorder
from tailrace.runtime.resume import recall
from tailrace.runtime.reward_pool import RewardPool
from tailrace.runtime.rollouts import Rollouts
from tailrace.runtime.run_directory import RunDirectory
from tailrace.runtime.score_news import ScoreNews
from tailrace.runtime.sources import Sources
from tailrace.runtime.training import Training
from tailrace.store.payload_store import PayloadStore
from tailrace.workers.messages import RolloutInit, TrainingInit

_WAITS_SHOWN_EVERY_S = 1.0
REWARD_START_LIMIT_S = 600.0
Say = Callable[[str], None]


class LocalRun:
    """Owns every part of one run, from the first event to the last. Made and used inside one event loop."""

    def __init__(self, settings: Settings, directory: RunDirectory, sources: Sources, store: PayloadStore, say: Say):
        self._settings, self._directory, self._sources = settings, directory, sources
        self._store, self._catalogue = store, sources.catalogue(store)
        checkpoints = Checkpoints(directory.checkpoints, keep=settings.keep_checkpoints)
        checkpoints.repair()
        checkpoints.refuse_damaged()
        self._past = recall(
            journal=directory.journal,
            checkpoint=checkpoints.latest(),
            store=store,
            schedule=sources.schedule,
        )
        self._coordinator = self._past.coordinator
        # A sink that cannot be had is the user's mistake: found before the display takes the screen.
        sinks = _open_sinks(settings, directory, say)
        self._display = self._open_display(say)
        self._prediction = _prediction(settings, self._coordinator)
        self.recorder = Recorder(directory, self._past, display=self._display, sinks=sinks, prediction=self._prediction)
        self._driver = Driver(self._coordinator, perform=self._perform, record=self._record, start_at=self._past.now)
        self._checkpointing = Checkpointing(
            checkpoints,
            coordinator=self._coordinator,
            recorder=self.recorder,
            store=store,
            keeps_payload=settings.keep_rollouts,
        )
        self._has_rewards = False
        self._make_workers()

    def _open_display(self, say: Say) -> Display:
        schedule = self._sources.schedule
        if schedule.trains:
            return open_display(schedule.max_steps, say)
        return RolloutDisplay(schedule, say, past=self._past.tail)

    def _make_workers(self) -> None:
        settings, logs, post = self._settings, self._directory.logs, self._driver.post
        init = RolloutInit(
            checkpoint=self._sources.model,
            model=settings.model,
            rollout=settings.rollout,
            max_length=settings.data.max_prompt_length + settings.rollout.max_response_length,
            seed=settings.seed,
        )
        self._training = Training(
            samples=self._catalogue.samples, post=post, on_saved=self._checkpointing.complete, log=logs / "training.log"
        )
        self._rollouts = Rollouts(
            init, request=self._catalogue.request, channel=self._channel, store=self._store, post=post, logs=logs
        )
        self._scores = ScoreNews(post)
        self._rewards = RewardPool(
            settings.reward,
            log_dir=logs,
            on_result=self._scores.add,
            uses=self._sources.rewards.uses,
            start_limit_s=REWARD_START_LIMIT_S,
        )

    async def run(self) -> do.FinishRun:
        """Start what must be there before the first event, then handle events until the run is over."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_broken_callback)
        watcher = asyncio.create_task(self._show_waits())
        try:
            # Before any event: a function that cannot be loaded is the user's mistake and costs only a moment to find.
            await self._load_rewards()
            if threading.current_thread() is threading.main_thread():
                for number in (signal.SIGINT, signal.SIGTERM):
                    loop.add_signal_handler(number, self.ask_to_stop)
            self._directory.stop_note.set_aside()
            return await self._driver.run(self._first_event())
        finally:
            watcher.cancel()
            await asyncio.gather(self._rollouts.stop(), self._training.stop(), self._rewards.stop())
            self.recorder.close()

    def _first_event(self) -> ev.Event:
        schedule = self._sources.schedule
        if self._past.is_new:
            return ev.RunStarted(schedule=schedule)
        return ev.RunResumed(limits=schedule.limits, checkpoint=self._past.checkpoint_version)

    async def _load_rewards(self) -> None:
        try:
            await self._rewards.start()
        except ValueError as error:
            raise SettingsError(str(error)) from error
        self._has_rewards = True

    def _start_trainer(self) -> None:
        to_redo = self._past.steps_to_redo()
        if to_redo:
            self._display.say(f"taking {len(to_redo)} steps again that came after the last checkpoint")
        self._training.start(self._training_init(), to_redo)

    def _training_init(self) -> TrainingInit:
        settings = self._settings
        return TrainingInit(
            model_path=self._sources.model,
            checkpoint=self._past.checkpoint,
            model=settings.model,
            trainer=settings.trainer,
            algorithm=settings.algorithm,
            temperature=settings.rollout.temperature,
            max_response_length=settings.rollout.max_response_length,
            max_steps=self._sources.schedule.max_steps,
            seed=settings.seed,
            channel_name=hashlib.sha256(str(self._directory.path).encode()).hexdigest()[:16],
        )

    def _channel(self) -> Path:
        assert self._training.channel is not None, "the core asks for a pull only after a publish"
        return self._training.channel

    def _record(self, entry: Entry) -> None:
        self.recorder.record(entry)
        if self._prediction is not None and self._prediction.is_off:
            self._driver.post(self._prediction.measure())

    def _perform(self, command: do.Command) -> None:
        match command:
            case do.RequestPrompts():
                self._driver.post(self._catalogue.offer(command))
            case do.StartTrainer():
                self._start_trainer()
            case do.StartInstance():
                self._rollouts.start(command)
            case do.KillInstance():
                self._rollouts.kill(command)
            case do.Submit():
                self._rollouts.submit(command)
            case do.Interrupt():
                self._rollouts.interrupt(command)
            case do.Abort():
                self._rollouts.abort(command)
            case do.ReleaseMemory():
                self._rollouts.release(command)
            case do.PullWeights():
                self._rollouts.pull(command)
            case do.Score(trajectories=trajectories):
                self._scores.expect(len(trajectories))
                for trajectory in trajectories:
                    self._rewards.submit(self._catalogue.task(trajectory))
            case do.CancelScores(trajectories=trajectories):
                self._rewards.cancel(trajectories)
            case do.TrainStep() | do.PublishWeights():
                self._training.perform(command)
            case do.SaveCheckpoint():
                self._save(command)
            case do.CloseEvaluation() | do.OpenRound() | do.CloseRound() | do.LeaveOut():
                pass  # said for whoever follows the run; payload that is not needed goes with the next checkpoint
            case _:
                raise TypeError(f"unknown command {command!r}")

    def _save(self, command: do.SaveCheckpoint) -> None:
        try:
            directory = self._checkpointing.begin(command.version)
        except OSError as error:
            self._driver.post(ev.CheckpointFailed(version=command.version, reason=str(error)))
        else:
            self._training.save(command.version, directory)

    def ask_to_stop(self) -> None:
        self._driver.post(ev.StopRequested(reason="it was asked to stop"))

    def _on_broken_callback(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An adapter raised where nobody awaits it (the disk is full, say): the run ends with that error."""
        self._driver.fail(context.get("exception") or RuntimeError(context["message"]))

    async def _show_waits(self) -> None:
        """Name what the run waits for; the display decides what of it is worth showing."""
        while True:
            await asyncio.sleep(_WAITS_SHOWN_EVERY_S)
            self._display.waits(self._waits(), self._driver.now())

    def _waits(self) -> list[Wait]:
        if self._has_rewards:
            return self._coordinator.waits()
        # Before the first event the core knows nothing yet.
        return [Wait(what="the reward functions to load", since=self._past.now, limit_s=REWARD_START_LIMIT_S)]


def _prediction(settings: Settings, coordinator: Coordinator) -> Prediction | None:
    """For a run that weighs costs, and whose choices may depend on the pace of the machine."""
    known, rollout = coordinator.schedule.coordination, settings.rollout
    if not known.plans or rollout.deterministic or rollout.from_run is not None:
        return None
    return Prediction(costs=coordinator.costs, prompt_length=known.prompt_length, max_running=known.max_running)


def _open_sinks(settings: Settings, directory: RunDirectory, say: Say) -> Sinks:
    experiment = Experiment(
        directory=directory.path,
        project=settings.project_name,
        name=settings.experiment_name or directory.path.name,
        config=settings.model_dump(mode="json"),
    )
    try:
        return open_sinks(settings.logger, experiment, say)
    except ValueError as error:
        raise SettingsError(str(error)) from error
