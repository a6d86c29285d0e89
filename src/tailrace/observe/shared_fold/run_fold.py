"""The one fold over the journal that knows what runs where; all other accounts of a run read it.

It answers: which responses are in progress, with how many tokens of which versions, on which instance; which instance
is up, with which version, doing what; what the trainer was asked to do; which rewards are outstanding.

``feed`` yields one ``News`` per message of an entry (the time that passed, the event, each command), right after the
message was taken into account. A reader therefore sees the state as it was at that message.

This is also the one place that copes with reports that repeat or contradict earlier ones. A report about a response
counts only if it comes from the instance that runs the response; a repeated reward or training step counts once.

A response ends up in exactly one of ``trained``, ``evaluated`` and ``dropped``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tailrace.core import codec
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.journal import Entry
from tailrace.core.responses.response import Finish
from tailrace.core.schedule import Schedule
from tailrace.observe.shared_fold.news import News, TimeSinceLast
from tailrace.observe.shared_fold.part_scores import PartScores
from tailrace.observe.shared_fold.records import (
    InstanceRecord,
    ResponseRecord,
    RunState,
    Task,
)
from tailrace.observe.shared_fold.responses import ResponseRecords
from tailrace.observe.shared_fold.trainer_work import TrainerWork

Handler = Callable[[Any, News], bool | None]


class RunFold:
    """Feed it a journal from its first entry, or from where a snapshot was taken."""

    def __init__(self, state: RunState | None = None) -> None:
        self.state = state or RunState()
        self._responses = ResponseRecords(self.state)
        self.scores = PartScores(self.state, self._responses)
        self._trainer = TrainerWork(self.state)
        self.occupied: dict[InstanceId, None] = {
            number: None for number, instance in self.state.instances.items() if instance.task is not None
        }
        """Instances that start, pull weights or release memory."""
        self.train_source = self.state.schedule.train_source if self.state.schedule is not None else ""
        self.generating = self._responses.generating
        """Instances that hold at least one unfinished response."""
        self._handlers = self._table()

    @classmethod
    def restore(cls, snapshot: Any) -> RunFold:
        return cls(codec.decode(RunState, snapshot))

    def snapshot(self) -> Any:
        return codec.encode(self.state)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickled fold keeps: the table of its handlers is made again."""
        return {name: value for name, value in self.__dict__.items() if name != "_handlers"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._handlers = self._table()

    def feed(self, entry: Entry) -> Iterator[News]:
        """Take one entry into account, message by message. Read the iterator to its end."""
        is_outage = type(entry.event) is ev.RunResumed
        yield News(entry.now, TimeSinceLast(self.state.now, is_outage))
        self.state.now = entry.now
        messages: list[ev.Event | do.Command] = [entry.event, *entry.commands]
        for message in messages:
            news = News(entry.now, message)
            handle = self._handlers.get(type(message))
            if self._is_stale(message):
                continue
            if handle is None or handle(message, news) is not False:
                yield news

    def _is_stale(self, message: ev.Event | do.Command) -> bool:
        """Whether a worker that is gone says this: another start of it has taken its place."""
        if isinstance(message, ev.TrainerEvent) and message.incarnation is not None:
            return message.incarnation != self.state.trainer_incarnation
        if not isinstance(message, ev.InstanceEvent) or message.incarnation is None:
            return False
        return message.incarnation != self.instance(message.instance).incarnation

    def follow(self, entry: Entry) -> None:
        """Take one entry into account where nobody needs the news."""
        for _ in self.feed(entry):
            pass

    @property
    def is_evaluating(self) -> bool:
        """Whether instances generate responses of evaluations and no others. Such seconds are no training rollout."""
        return bool(self.generating) and not self._responses.num_running(self.train_source)

    @property
    def is_training_beside_rollout(self) -> bool:
        """Whether the trainer works on an optimizer step while instances generate for training."""
        return self._trainer.is_training and bool(self.generating) and not self.is_evaluating

    @property
    def num_tokens_held(self) -> int:
        """Response tokens of the unfinished training responses that instances hold, as far as they were reported."""
        return self._responses.num_tokens_held(self.train_source)

    def sources_generating(self) -> list[str]:
        return self._responses.sources_running()

    def is_training(self, response: ResponseRecord) -> bool:
        """Whether the response is for training, not for evaluation."""
        return response.id.group.source == self.train_source

    def in_progress(self) -> Iterator[ResponseRecord]:
        """All responses that are not dropped."""
        return self._responses.in_progress()

    def instance(self, number: InstanceId) -> InstanceRecord:
        found = self.state.instances.get(number)
        return self.state.instances.setdefault(number, InstanceRecord()) if found is None else found

    # The run

    def _run_started(self, event: ev.RunStarted, news: News) -> None:
        self.state.schedule, self.train_source = event.schedule, event.schedule.train_source

    def _run_resumed(self, event: ev.RunResumed, news: News) -> None:
        """No process is left, so nothing runs and nothing asked for will be answered."""
        self.state.schedule = event.schedule or self.state.schedule
        for number, instance in self.state.instances.items():
            self._stop(number, news)
            instance.has_had_work = False
        self.scores.resume(() if self.state.schedule is None else self.state.schedule.score_parts, news)
        self.state.is_stopping = False
        self._trainer_stopped(event, news)

    def _stop_requested(self, event: ev.StopRequested, news: News) -> None:
        self.state.is_stopping |= event.saves

    # Instances

    def num_in_fleet(self, schedule: Schedule) -> int:
        """Instances that are in the fleet: those of the schedule and those that were added, without those that left."""
        others = self.state.instances.items()
        changes = [(number >= schedule.num_instances) - each.is_gone for number, each in others]
        return schedule.num_instances + sum(changes)

    def _added(self, event: ev.InstanceAdded, news: News) -> None:
        instance = self.instance(event.instance)
        instance.is_retiring = instance.is_gone = False

    def _retired(self, event: ev.InstanceRetired, news: News) -> None:
        instance = self.instance(event.instance)
        is_there = instance.is_up or instance.task is not None
        instance.is_retiring, instance.is_gone = is_there, not is_there

    def _start(self, command: do.StartInstance, news: News) -> None:
        instance = self.instance(command.instance)
        instance.incarnation, instance.num_preemptions, instance.is_gone = command.incarnation, 0, False
        self._set_task(command.instance, Task.START)

    def _instance_started(self, event: ev.InstanceStarted, news: News) -> bool:
        instance = self.instance(event.instance)
        if instance.is_up:
            return False
        instance.is_up, instance.has_released, instance.version = True, False, event.version
        self._set_task(event.instance, None)
        return True

    def _weights_pulled(self, event: ev.WeightsPulled, news: News) -> bool:
        instance = self.instance(event.instance)
        if instance.task is not Task.PULL or (instance.pulling is not None and event.version < instance.pulling):
            return False
        instance.version, instance.has_released = event.version, False
        self._set_task(event.instance, None)
        return True

    def _pull_failed(self, event: ev.PullFailed, news: News) -> bool:
        if self.instance(event.instance).task is not Task.PULL:
            return False
        self._set_task(event.instance, None)
        return True

    def _pull(self, command: do.PullWeights, news: News) -> None:
        self.instance(command.instance).pulling = command.version
        self.instance(command.instance).is_gone = False
        self._set_task(command.instance, Task.PULL)

    def _memory_released(self, event: ev.MemoryReleased, news: News) -> bool:
        instance = self.instance(event.instance)
        if instance.task is not Task.RELEASE:
            return False
        instance.has_released = True
        instance.is_retiring, instance.is_gone = False, instance.is_retiring
        self._set_task(event.instance, None)
        return True

    def _instance_lost(self, event: ev.InstanceLost, news: News) -> bool:
        instance = self.instance(event.instance)
        if not instance.is_up and instance.task is not Task.START:
            return False
        self._stop(event.instance, news)
        instance.has_had_work = True
        return True

    def _instance_stopped(self, event: ev.InstanceStopped, news: News) -> None:
        self._stop(event.instance, news)
        self.instance(event.instance).is_gone = True

    def _stop(self, number: InstanceId, news: News) -> None:
        instance = self.instance(number)
        for response in [*instance.running.values()]:
            self._responses.leave(response, news)
        instance.is_up, instance.has_released, instance.version = False, False, None
        instance.is_retiring, instance.is_gone = False, instance.is_gone or instance.is_retiring
        self._set_task(number, None)

    def _set_task(self, number: InstanceId, task: Task | None) -> None:
        self.instance(number).task = task
        if task is None:
            self.occupied.pop(number, None)
        else:
            self.occupied[number] = None

    def _park(self, size: int) -> None:
        """From now on the instances of this parallel size work. The others leave, until their size is used again."""
        schedule = self.state.schedule
        if schedule is None or schedule.parallelism.layout(size) is None:
            return
        for number, instance in self.state.instances.items():
            layout = schedule.parallelism.layout_of(number)
            if layout is not None and layout.size != size:
                is_there = (instance.is_up and not instance.has_released) or instance.task is not None
                instance.is_retiring, instance.is_gone = is_there, not is_there

    # Responses

    def _submit(self, command: do.Submit, news: News) -> None:
        instance = self.instance(command.instance)
        instance.is_up = instance.has_had_work = True
        for response, start in command.dispatches:
            self._responses.submit(response, start, command.instance, news)

    def _reported(self, event: ev.RolloutReported, news: News) -> None:
        instance = self.instance(event.instance)
        news.num_preempted = max(event.num_preemptions - instance.num_preemptions, 0)
        instance.num_preemptions = event.num_preemptions
        for part in event.parts:
            response = self._responses.running_on(event.instance, part.response)
            if response is None or response.is_past(part, event.version):
                continue  # it repeats an earlier report, or comes from an instance that does not run the response
            self._grow(response, part.length, event.version, news)
            if isinstance(part, ev.Finished):
                if part.finish is not Finish.INTERRUPTED:
                    response.finish = part.finish
                    news.ended.append(response)
                self._responses.leave(response, news)

    def _interrupt(self, command: do.Interrupt, news: News) -> None:
        self._responses.stop(command.instance, command.responses)

    def _aborted(self, event: ev.ResponsesAborted, news: News) -> None:
        for part in event.aborted:
            response = self._responses.running_on(event.instance, part.response)
            if response is None:
                continue  # it had ended before
            version = response.segments[-1][0] if response.segments else Version(0)
            self._grow(response, part.length, version, news)
            self._responses.drop([response], news)
            self._responses.leave(response, news)

    def _grow(self, response: ResponseRecord, length: int, version: Version, news: News) -> None:
        new = self._responses.grow(response, length, version)
        news.heard.append((response, new))
        if response.is_dropped:
            news.wasted.append((response, new))

    # Groups

    def _abort(self, command: do.Abort | do.AbortScores, news: News) -> None:
        self._drop(command.responses, news)

    def _drop(self, responses: Iterable[ResponseId], news: News) -> None:
        found = [self.state.responses.get(response_id) for response_id in responses]
        self._responses.drop([response for response in found if response is not None], news)

    def _report_dropped(self, command: do.ReportDropped, news: News) -> None:
        self._drop(command.responses, news)
        self._drop_groups((*command.filtered, *command.dropped, *command.restarted), news)

    def _open_round(self, command: do.OpenRound, news: News) -> None:
        self._drop_groups(command.restarted, news)
        self._park(command.parallel_size)

    def _return_to_size(self, command: do.ReturnToSize, news: News) -> None:
        self._park(command.parallel_size)

    def _close_round(self, command: do.CloseRound, news: News) -> None:
        keeps = self.state.schedule is not None and self.state.schedule.keep_deferred_tokens
        self._drop_groups(command.dropped if keeps else (*command.dropped, *command.deferred, *command.late), news)

    def _close_evaluation(self, command: do.CloseEvaluation, news: News) -> None:
        members = self._responses.of_groups(command.groups)
        news.evaluated = self._responses.take(sorted(each.id for each in members if each.finish is not None))
        self._drop_groups(command.groups, news)

    def _drop_groups(self, groups: Iterable[GroupId], news: News) -> None:
        self._responses.drop(self._responses.of_groups(groups), news)

    # Rewards

    def _scored(self, event: ev.ResponsesScored, news: News) -> bool:
        if self.state.is_stopping:
            return False
        self.scores.take(event, news)
        return True

    # The trainer

    def _step_trained(self, event: ev.StepTrained, news: News) -> bool:
        if event.version <= self.state.version:
            return False
        step = self._trainer.end_step(event)
        news.step, news.trained = step, self._responses.take(step.responses)
        self._drop_groups({response.id.group: None for response in news.trained}, news)
        return True

    def _trainer_reached(self, event: ev.TrainerReached, news: News) -> None:
        if event.version == self.state.version:
            self.state.is_trainer_starting = False

    def _trainer_stopped(self, event: ev.Event, news: News) -> None:
        self._trainer.stop()

    def _start_trainer(self, command: do.StartTrainer, news: News) -> None:
        self.state.is_trainer_starting, self.state.trainer_incarnation = True, command.incarnation

    def _table(self) -> dict[type[ev.Event] | type[do.Command], Handler]:
        """What is done for each kind of message. A handler returns False where the message answers nothing that was
        asked for: it repeats an earlier one, and followers do not hear of it."""
        return {
            ev.RunStarted: self._run_started,
            ev.RunResumed: self._run_resumed,
            ev.StopRequested: self._stop_requested,
            ev.InstanceAdded: self._added,
            ev.InstanceRetired: self._retired,
            ev.InstanceStarted: self._instance_started,
            ev.WeightsPulled: self._weights_pulled,
            ev.PullFailed: self._pull_failed,
            ev.MemoryReleased: self._memory_released,
            ev.InstanceLost: self._instance_lost,
            ev.InstanceStopped: self._instance_stopped,
            ev.RolloutReported: self._reported,
            ev.ResponsesAborted: self._aborted,
            ev.ResponsesScored: self._scored,
            ev.StepTrained: self._step_trained,
            ev.TrainerReached: self._trainer_reached,
            ev.TrainerLost: self._trainer_stopped,
            ev.TrainingFailed: self._trainer_stopped,
            ev.GradientsAccumulated: lambda event, news: self._trainer.accumulated(event),
            ev.CheckpointSaved: lambda event, news: self._trainer.saved(event.version),
            ev.CheckpointFailed: lambda event, news: self._trainer.saved(event.version),
            ev.CheckpointSkipped: lambda event, news: self._trainer.saved(event.version),
            ev.WeightsPublished: lambda event, news: self._trainer.published(event.version),
            do.StartInstance: self._start,
            do.PullWeights: self._pull,
            do.ReleaseMemory: lambda command, news: self._set_task(command.instance, Task.RELEASE),
            do.Submit: self._submit,
            do.Interrupt: self._interrupt,
            do.Abort: self._abort,
            do.AbortScores: self._abort,
            do.ReportDropped: self._report_dropped,
            do.OpenRound: self._open_round,
            do.ReturnToSize: self._return_to_size,
            do.CloseRound: self._close_round,
            do.CloseEvaluation: self._close_evaluation,
            do.Score: lambda command, news: self.scores.ask(command),
            do.Accumulate: lambda command, news: self._trainer.accumulate(command),
            do.FinishStep: lambda command, news: self._trainer.finish(command.version),
            do.DropStep: lambda command, news: self._trainer.drop_step(),
            do.SaveCheckpoint: lambda command, news: self._trainer.save(command.version),
            do.PublishWeights: lambda command, news: self._trainer.publish(command.version),
            do.StartTrainer: self._start_trainer,
        }
