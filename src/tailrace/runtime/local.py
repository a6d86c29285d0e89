"""A run: the controller process and its workers, which are processes of this machine or Ray actors.

    controller   driver, coordinator, journal, payload store        (this process)
    rollout-N    one engine each                                     tailrace.workers.rollout_worker
    training     the trainer; publishes weights                      tailrace.workers.training_worker
    reward-N     reward functions, killable                          tailrace.workers.reward_worker
    tests-N      programs of responses against test cases            tailrace.workers.reward_worker
    judge-N      a model that scores responses                       tailrace.workers.judge_worker

This file only connects parts: each command goes to the adapter that performs it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tailrace.config.load import SettingsError
from tailrace.config.settings import Settings
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import Version
from tailrace.core.journal import Entry
from tailrace.core.run.waits import Wait
from tailrace.core.schedule import Schedule
from tailrace.observe.display.display import Display, PlainDisplay, open_display
from tailrace.observe.display.rollout_display import RolloutDisplay
from tailrace.observe.display.safe_display import SafeDisplay
from tailrace.observe.guarded import Complain, Complaints
from tailrace.observe.sinks import Sinks, open_sinks
from tailrace.observe.sinks.sink import Experiment
from tailrace.runtime.adapters.first_messages import rollout_init, training_init
from tailrace.runtime.adapters.open_parts import START_LIMIT_S, open_score_parts
from tailrace.runtime.adapters.rollout_adapter import RolloutAdapter
from tailrace.runtime.adapters.training_adapter import TrainingAdapter
from tailrace.runtime.driver import Driver
from tailrace.runtime.inputs.sources import Sources
from tailrace.runtime.launchers.place import WorkerPlace
from tailrace.runtime.record.change_of_course import change_of_course
from tailrace.runtime.record.checkpoint_adapter import CheckpointAdapter
from tailrace.runtime.record.checkpoint_folder import CheckpointFolder
from tailrace.runtime.record.checkpoint_size import expected_bytes
from tailrace.runtime.record.cost_check import cost_check
from tailrace.runtime.record.recorder import Recorder
from tailrace.runtime.record.resume import recall
from tailrace.runtime.record.run_directory import RunDirectory
from tailrace.runtime.threads.work_thread import WorkThread
from tailrace.sizing.channel_choice import chosen_channel
from tailrace.store.payload_store import PayloadStore
from tailrace.weights.address import ChannelAddress
from tailrace.workers.sample_transfer import Batch
from tailrace.workers.stop_signals import heed_stop_signals

_WAITS_SHOWN_EVERY_S = 1.0
Say = Callable[[str], None]


class LocalRun:
    """Owns every part of one run, from the first event to the last. Made and used inside one event loop."""

    def __init__(
        self,
        settings: Settings,
        directory: RunDirectory,
        sources: Sources,
        store: PayloadStore,
        say: Say,
        place: WorkerPlace,
    ) -> None:
        self._settings, self._directory, self._sources, self._place = settings, directory, sources, place
        self._launch, self._sharing = place.launch, place.sharing
        self._channel_name = chosen_channel(settings, place.plan).name
        self._checks: set[asyncio.Future[None]] = set()
        """Checks of the GPU after a worker was lost."""
        self._store, self._catalogue = store, sources.catalogue(store)
        checkpoints = self._checkpoints = CheckpointFolder(directory.checkpoints, keep=settings.keep_checkpoints)
        checkpoints.repair()
        checkpoints.refuse_damaged()
        self._past = recall(
            journal=directory.journal,
            checkpoint=checkpoints.latest(),
            store=store,
            schedule=sources.schedule,
        )
        self._coordinator = self._past.coordinator
        version, before = self._coordinator.version, self._coordinator.schedule
        for line in change_of_course(directory, settings, version=version, before=before, schedule=sources.schedule):
            say(line)
        self._taken_steps = self._past.taken_steps()
        # Opened before the display: a sink that is not available is an error that the user must see.
        complain = Complaints(directory.logs / "observers.log", say)
        sinks = _open_sinks(settings, directory, complain)
        self._display = self._open_display(say, complain)
        self.recorder = Recorder(
            directory,
            self._past,
            display=self._display,
            sinks=sinks,
            prediction=cost_check(settings, self._coordinator),
            complain=complain,
        )
        self._driver = Driver(
            self._coordinator,
            perform=self._perform,
            record=self._record,
            warn=self._warn,
            start_at=self._past.now,
        )
        self._payload, self._tasks, self._batches = WorkThread("payload"), WorkThread("tasks"), WorkThread("batches")
        self._checkpointing = CheckpointAdapter(
            checkpoints,
            coordinator=self._coordinator,
            recorder=self.recorder,
            store=store,
            keeps_payload=settings.keep_rollouts,
        )
        self._has_rewards = self._is_asked_to_stop = self._has_told_stop = False
        self._make_workers()

    def _open_display(self, say: Say, complain: Complain) -> Display:
        schedule, tail = self._sources.schedule, self._past.tail
        best: Callable[[], Display] = (
            partial(open_display, schedule.max_steps, say)
            if schedule.trains
            else partial(RolloutDisplay, schedule, say, past=tail)
        )
        return SafeDisplay([best, partial(PlainDisplay, schedule.max_steps, say)], complain)

    def _make_workers(self) -> None:
        settings, launch, post = self._settings, self._launch, self._post
        self._training = TrainingAdapter(
            launch=launch,
            batch=self._batch_maker(),
            post=post,
            on_saved=self._complete,
            work=self._batches.do,
            env=self._place.training_env,
            say=self._display.say,
        )
        self._rollouts = RolloutAdapter(
            rollout_init(settings, self._sources),
            launch=launch,
            request=self._catalogue.request,
            channel=self._channel,
            store=self._store,
            post=post,
            work=self._payload,
            env=self._place.rollout_env,
            parallelism=self._schedule_from_now().parallelism,
        )
        self._scores = open_score_parts(
            settings,
            self._sources,
            self._catalogue,
            place=self._place,
            post=post,
            work=self._tasks,
            say=self._display.say,
            recover=self._free_faulty_gpu,
        )

    def _batch_maker(self) -> Callable[[do.Accumulate], Batch]:
        if self._launch.shares_files:
            return self._catalogue.stored
        catalogue, pack = self._catalogue, self._place.pack
        return lambda command: pack(catalogue.sent(command))

    async def run(self) -> do.FinishRun:
        """Start what must be there before the first event, then handle events until the run is over."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_broken_callback)
        watcher = asyncio.create_task(self._show_waits())
        try:
            # Before any event: a function that cannot be loaded must be reported at once.
            await self._load_rewards()
            heed_stop_signals(loop, self.ask_to_stop)
            self._directory.stop_note.reserve()
            next_step = self._coordinator.version + 1
            self._directory.keep_settings(self._settings, self._sources.fingerprints, next_step=next_step)
            return await self._driver.run(self._first_event())
        finally:
            watcher.cancel()
            await asyncio.gather(self._rollouts.stop(), self._training.stop(), self._scores.stop())
            for thread in (self._payload, self._tasks, self._batches):
                if (problem := thread.close()) is not None:
                    self._warn(problem)
            self.recorder.close()

    def _warn(self, problem: str) -> None:
        self._display.say(f"warning: {problem}")

    def _first_event(self) -> ev.Event:
        schedule = self._schedule_from_now()
        if self._past.is_new:
            return ev.RunStarted(schedule=schedule)
        return ev.RunResumed(limits=schedule.limits, checkpoint=self._past.checkpoint_version, schedule=schedule)

    def _schedule_from_now(self) -> Schedule:
        given = self._sources.schedule
        return given if self._past.is_new else self._coordinator.schedule.continued(given)

    async def _load_rewards(self) -> None:
        try:
            await self._scores.start()
        except ValueError as error:
            raise SettingsError(str(error)) from error
        self._has_rewards = True

    def _start_trainer(self, incarnation: int) -> None:
        """Start the trainer from the newest checkpoint, which may be newer than the one the run was resumed from."""
        if not self._training.is_announced(incarnation):
            return  # it was ended before it began
        to_redo = self._taken_steps.since(Version(self._checkpoints.latest_version() or 0))
        if to_redo:
            self._display.say(f"repeating {len(to_redo)} steps that were trained after the last checkpoint")
        init = training_init(
            self._settings,
            self._sources,
            checkpoint=self._checkpoints.latest(),
            channel=self._channel_name,
            run=self._directory.path,
        )
        self._training.start(init, to_redo, incarnation)

    def _post(self, event: ev.Event) -> None:
        if self._sharing.is_faulty is None or not isinstance(event, ev.InstanceLost | ev.TrainerLost):
            self._driver.post(event)
            return
        check = asyncio.ensure_future(self._post_loss(event))
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)

    async def _post_loss(self, lost: ev.Event) -> None:
        try:
            await self._free_faulty_gpu()
        finally:
            self._driver.post(lost)

    async def _free_faulty_gpu(self) -> None:
        """If a lost worker has left the GPU unusable for new workers, end the others before any is started again."""
        is_faulty = self._sharing.is_faulty
        if is_faulty is not None and await asyncio.to_thread(is_faulty):
            self._display.say("the MPS server has failed: all workers that use the GPU are started again")
            self._rollouts.kill_all()
            self._training.kill()
            self._scores.kill_on_gpu()

    def _channel(self) -> ChannelAddress:
        assert self._training.channel is not None, "the core asks for a pull only after a publish"
        return self._training.channel

    def _record(self, entries: Sequence[Entry]) -> None:
        self.recorder.record(*entries)
        for entry in entries:
            self._follow(entry)

    def _follow(self, entry: Entry) -> None:
        """Do what depends on entries and is no decision."""
        self._taken_steps.feed(entry)
        if isinstance(entry.event, ev.CheckpointSaved):
            self._taken_steps.cover(entry.event.version)
        if isinstance(entry.event, ev.StopRequested) and entry.event.saves:
            self._tell_stop()
        if isinstance(entry.event, ev.TrainerLost):
            self._display.say(f"the trainer is lost: {entry.event.reason}")
        if (measured := self.recorder.measured_costs()) is not None:
            self._driver.post_from_thread(measured)

    def _perform(self, command: do.Command) -> Awaitable[None] | None:
        """Perform a command. Return an awaitable if the next event must wait for it."""
        match command:
            case do.RequestPrompts():
                self._driver.post(self._catalogue.offer(command))
            case do.StartTrainer(incarnation=incarnation):
                self._training.announce(incarnation)
                # Queued behind the commands for the lost trainer, so that the new one does not get them.
                self._batches.do(lambda: None, then=lambda _: self._start_trainer(incarnation))
            case do.KillTrainer(reason=reason):
                self._training.kill(reason)
            case do.StartInstance():
                self._rollouts.start(command)
            case do.StopInstance():
                self._rollouts.retire(command)
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
            case do.Score() | do.LimitCases() | do.AbortScores():
                self._scores.perform(command)
            case do.Accumulate() | do.DropStep() | do.FinishStep() | do.PublishWeights():
                self._batches.do(lambda: self._training.perform(command))
            case do.SaveCheckpoint():
                return self._save(command)
            case do.CloseEvaluation() | do.OpenRound() | do.ReturnToSize() | do.CloseRound() | do.ReportDropped():
                pass  # reports for observers; the next checkpoint releases the payload
            case _:
                raise TypeError(f"unknown command {command!r}")
        return None

    async def _save(self, command: do.SaveCheckpoint) -> None:
        version, first = command.version, partial(expected_bytes, self._settings, self._sources.model)
        if command.may_skip and (why := await asyncio.to_thread(self._checkpoints.shortage, first)):
            self._driver.post(ev.CheckpointSkipped(version=version, reason=why))
            return
        try:
            directory = await self._driver.ask(lambda: self._checkpointing.begin(version))
        except OSError as error:
            self._driver.post(ev.CheckpointFailed(version=version, reason=str(error)))
        else:
            self._batches.do(lambda: self._training.save(version, directory))

    def _complete(self, version: Version, seconds: float) -> None:
        incarnation = self._training.incarnation
        self._batches.do(
            lambda: replace(self._checkpointing.complete(version, seconds), incarnation=incarnation),
            then=self._driver.post,
        )

    def ask_to_stop(self, number: int = signal.SIGINT) -> None:
        """Ask the run to save and to end. After a second Ctrl-C it ends at once; other signals may come one after the
        other (systemd sends two) and ask for nothing new. ``number``: the signal; a program counts as Ctrl-C."""
        saves, self._is_asked_to_stop = not (self._is_asked_to_stop and number == signal.SIGINT), True
        self._driver.post(ev.StopRequested(reason="it was asked to stop", saves=saves))

    def _tell_stop(self) -> None:
        """Say once what a run that was asked to stop does before it ends."""
        if self._has_told_stop:
            return
        self._has_told_stop = True
        if waits := self._coordinator.waits():
            wait = f"{waits[0].what} (at most {waits[0].limit_s:g} s)"
            self._display.say(f"asked to stop: waiting for {wait}; Ctrl-C ends the run at once")

    def _on_broken_callback(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the run with an error that an adapter raised in a callback, for example because the disk is full."""
        self._driver.fail(context.get("exception") or RuntimeError(context["message"]))

    async def _show_waits(self) -> None:
        """Tell the display what the run waits for. The display decides what to show."""
        while True:
            await asyncio.sleep(_WAITS_SHOWN_EVERY_S)
            await self._driver.ask(lambda: self._display.waits(self._waits(), self._driver.now()))

    def _waits(self) -> list[Wait]:
        if self._has_rewards:
            return self._coordinator.waits()
        # Before the first event the core has no waits of its own.
        return [Wait(what="the reward workers to start", since=self._past.now, limit_s=START_LIMIT_S)]


def _open_sinks(settings: Settings, directory: RunDirectory, complain: Complain) -> Sinks:
    experiment = Experiment(
        directory=directory.path,
        project=settings.project_name,
        name=settings.experiment_name or directory.path.name,
        config=settings.model_dump(mode="json"),
    )
    try:
        return open_sinks(settings.logger, experiment, complain)
    except ValueError as error:
        raise SettingsError(str(error)) from error
