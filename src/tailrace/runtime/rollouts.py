"""Rollout instances as processes: commands become messages, messages and deaths become events.

Payload is written before its event is posted: an event never speaks of tokens that are not in the store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import InstanceId, TrajectoryId
from tailrace.core.trajectory import Finish
from tailrace.engines.contract import Output, Request
from tailrace.runtime.process import TAKE_TURNS, WorkerProcess
from tailrace.store.payload_store import PayloadStore
from tailrace.workers.messages import (
    Forget,
    Forgotten,
    Generate,
    Pull,
    Pulled,
    Refused,
    Release,
    Released,
    Report,
    RolloutInit,
    RolloutReady,
    Stop,
)

Post = Callable[[ev.Event], None]


class Rollouts:
    """Owns the instance processes."""

    def __init__(
        self,
        init: RolloutInit,
        *,
        request: Callable[[TrajectoryId, int], Request],
        channel: Callable[[], Path],
        store: PayloadStore,
        post: Post,
        logs: Path,
    ) -> None:
        self._init, self._request, self._channel = init, request, channel
        self._store, self._post, self._logs = store, post, logs
        self._processes: dict[InstanceId, WorkerProcess] = {}

    def start(self, command: do.StartInstance) -> None:
        instance = command.instance
        self._processes[instance] = WorkerProcess.start(
            "tailrace.workers.rollout",
            self._init,
            name=f"rollout-{instance}",
            log=self._logs / f"rollout-{instance}.log",
            env=TAKE_TURNS,
            on_message=lambda message: self._hear(instance, message),
            on_exit=lambda reason: self._lose(instance, reason),
        )

    def kill(self, command: do.KillInstance) -> None:
        # One that died a moment ago is no longer here; the news of it is already in the inbox.
        if (process := self._processes.get(command.instance)) is not None:
            process.kill()

    def submit(self, command: do.Submit) -> None:
        requests = [self._request(dispatch.trajectory, dispatch.start) for dispatch in command.dispatches]
        self._send(command.instance, Generate(requests=tuple(requests)))

    def interrupt(self, command: do.Interrupt) -> None:
        self._send(command.instance, Stop(trajectories=command.trajectories))

    def abort(self, command: do.Abort) -> None:
        self._send(command.instance, Forget(trajectories=command.trajectories))

    def release(self, command: do.ReleaseMemory) -> None:
        self._send(command.instance, Release())

    def pull(self, command: do.PullWeights) -> None:
        self._send(command.instance, Pull(version=command.version, channel=self._channel()))

    async def stop(self) -> None:
        for process in list(self._processes.values()):
            await process.stop(grace_s=2.0)

    def _send(self, instance: InstanceId, message: object) -> None:
        # A process that died a moment ago is no longer here; the news of it is already in the inbox.
        if (process := self._processes.get(instance)) is not None:
            process.send(message)

    def _hear(self, instance: InstanceId, message: object) -> None:
        match message:
            case RolloutReady(version=version):
                self._post(ev.InstanceStarted(instance=instance, version=version))
            case Pulled(version=version, seconds=seconds):
                self._post(ev.WeightsPulled(instance=instance, version=version, seconds=seconds))
            case Forgotten(lengths=lengths):
                aborted = tuple(ev.Aborted(trajectory=trajectory, length=length) for trajectory, length in lengths)
                self._post(ev.ResponsesAborted(instance=instance, aborted=aborted))
            case Released(seconds=seconds):
                self._post(ev.MemoryReleased(instance=instance, seconds=seconds))
            case Report():
                self._store.append(output.segment for output in message.outputs if len(output.segment.tokens))
                self._post(reported(instance, message))
            case Refused(reason=reason):
                self._post(ev.StopRequested(reason=reason))  # another instance could not serve it either
            case _:
                raise TypeError(f"unknown message {message!r}")

    def _lose(self, instance: InstanceId, reason: str) -> None:
        del self._processes[instance]
        self._post(ev.InstanceLost(instance=instance, reason=reason))


def reported(instance: InstanceId, report: Report) -> ev.RolloutReported:
    """The metadata of a report: what the core may know about it."""
    return ev.RolloutReported(
        instance=instance,
        version=report.version,
        progressed=tuple(
            ev.Progressed(trajectory=output.segment.trajectory, length=output.segment.end)
            for output in report.outputs
            if output.finish is None
        ),
        finished=tuple(
            ev.Finished(trajectory=output.segment.trajectory, length=output.segment.end, finish=_finish(output))
            for output in report.outputs
            if output.finish is not None
        ),
        num_preemptions=report.num_preemptions,
        submit_s=round(report.submit_s, 6),
        interrupt_s=round(report.interrupt_s, 6),
        prefill=None if report.prefill is None else replace(report.prefill, seconds=round(report.prefill.seconds, 6)),
    )


def _finish(output: Output) -> Finish:
    assert output.finish is not None
    return output.finish
