"""The adapter of rollout workers: turns commands into messages, and messages and ended workers into events.

Payload is written before its event is posted, so an event never refers to tokens that are not in the store. Messages to
an instance go through one thread, in order; so do messages from all instances. What is heard in one turn of the event
loop is written together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import InstanceId, TrajectoryId
from tailrace.core.responses.trajectory import Finish
from tailrace.engines.contract import Output, Request
from tailrace.runtime.work_thread import WorkThread
from tailrace.runtime.worker import OPENMP_PASSIVE_WAIT, Launcher, WorkerHandle, WorkerSpec
from tailrace.store.payload_store import PayloadStore
from tailrace.weights.address import ChannelAddress
from tailrace.workers.messages import (
    Abort,
    Aborted,
    Generate,
    Pull,
    Pulled,
    PullFailed,
    Refused,
    Release,
    Released,
    Report,
    RolloutInit,
    RolloutReady,
    Stop,
)
from tailrace.workers.report_interval import gather_s

Post = Callable[[ev.Event], None]


class RolloutAdapter:
    """Owns the workers of the instances."""

    def __init__(
        self,
        init: RolloutInit,
        *,
        launch: Launcher,
        request: Callable[[TrajectoryId, int], Request],
        channel: Callable[[], ChannelAddress],
        store: PayloadStore,
        post: Post,
        work: WorkThread,
        env: Callable[[int], Mapping[str, str]] = lambda instance: {},
    ) -> None:
        """``work``: the thread that reads and writes payload. ``env``: more environment variables of the worker of an
        instance."""
        self._env = env
        self._init, self._launch, self._request, self._channel = init, launch, request, channel
        self._store, self._post, self._work = store, post, work
        self._workers: dict[InstanceId, WorkerHandle] = {}
        self._heard: list[tuple[InstanceId, object]] = []
        """Messages of this turn of the event loop, and what became of workers."""
        self._endings: set[asyncio.Future[None]] = set()
        """Retired workers that are being ended."""

    def start(self, command: do.StartInstance) -> None:
        instance = command.instance
        spec = WorkerSpec(
            name=f"rollout-{instance}",
            entry="tailrace.workers.rollout_worker:serve",
            init=self._init,
            env=OPENMP_PASSIVE_WAIT | dict(self._env(instance)),
            gather_s=gather_s(self._init.rollout.num_instances),
        )
        self._workers[instance] = self._launch(
            spec,
            hear=lambda message: self._hear(instance, message),
            lose=lambda reason: self._lose(instance, reason),
        )

    def kill(self, command: do.KillInstance) -> None:
        # If the worker has just ended, it is no longer here, and InstanceLost is already in the inbox.
        if (worker := self._workers.get(command.instance)) is not None:
            worker.kill()

    def kill_all(self) -> None:
        for worker in self._workers.values():
            worker.kill()

    def retire(self, command: do.StopInstance) -> None:
        """End the worker of an instance that has no work."""
        instance, worker = command.instance, self._workers.pop(command.instance, None)
        if worker is None:
            return  # it has just ended; InstanceLost is on its way to the inbox

        def tell(ending: asyncio.Future[None]) -> None:
            self._endings.discard(ending)
            self._hear(instance, ev.InstanceStopped(instance=instance))

        ending = asyncio.ensure_future(worker.stop(grace_s=2.0))
        self._endings.add(ending)
        ending.add_done_callback(tell)

    def submit(self, command: do.Submit) -> None:
        self._send(command.instance, lambda: Generate(requests=tuple(self._request(*d) for d in command.dispatches)))

    def interrupt(self, command: do.Interrupt) -> None:
        self._send(command.instance, lambda: Stop(trajectories=command.trajectories))

    def abort(self, command: do.Abort) -> None:
        self._send(command.instance, lambda: Abort(trajectories=command.trajectories))

    def release(self, command: do.ReleaseMemory) -> None:
        self._send(command.instance, lambda: Release())

    def pull(self, command: do.PullWeights) -> None:
        self._send(command.instance, lambda: Pull(version=command.version, channel=self._channel()))

    async def stop(self) -> None:
        await asyncio.gather(*[worker.stop(grace_s=2.0) for worker in self._workers.values()])

    def _send(self, instance: InstanceId, make: Callable[[], object]) -> None:
        # If the worker has just ended, it is no longer here, and InstanceLost is on its way to the inbox.
        if (worker := self._workers.get(instance)) is not None:
            self._work.do(lambda: worker.send(make()))

    def _hear(self, instance: InstanceId, message: object) -> None:
        if not self._heard:
            asyncio.get_running_loop().call_soon(self._pass_on)
        self._heard.append((instance, message))

    def _pass_on(self) -> None:
        heard, self._heard = self._heard, []
        self._work.do(lambda: self._events(heard), then=self._post_all)

    def _post_all(self, events: Sequence[ev.Event]) -> None:
        for event in events:
            self._post(event)

    def _events(self, heard: Sequence[tuple[InstanceId, object]]) -> list[ev.Event]:
        """Write the payload of messages and return their events."""
        outputs = [output for _, message in heard if isinstance(message, Report) for output in message.outputs]
        self._store.append(output.segment for output in outputs if len(output.segment.tokens))
        return [_event(instance, message) for instance, message in heard]

    def _lose(self, instance: InstanceId, reason: str) -> None:
        del self._workers[instance]
        self._hear(instance, ev.InstanceLost(instance=instance, reason=reason))  # after all that it has said


def _event(instance: InstanceId, message: object) -> ev.Event:
    match message:
        case ev.InstanceLost() | ev.InstanceStopped():
            return message
        case RolloutReady(version=version):
            return ev.InstanceStarted(instance=instance, version=version)
        case Pulled(version=version, seconds=seconds):
            return ev.WeightsPulled(instance=instance, version=version, seconds=seconds)
        case PullFailed(reason=reason):
            return ev.PullFailed(instance=instance, reason=reason)
        case Aborted(lengths=lengths):
            aborted = tuple(ev.Aborted(trajectory=trajectory, length=length) for trajectory, length in lengths)
            return ev.ResponsesAborted(instance=instance, aborted=aborted)
        case Released(seconds=seconds):
            return ev.MemoryReleased(instance=instance, seconds=seconds)
        case Report():
            return reported(instance, message)
        case Refused(reason=reason):
            return ev.StopRequested(reason=reason)  # another instance could not serve it either
        case _:
            raise TypeError(f"unknown message {message!r}")


def reported(instance: InstanceId, report: Report) -> ev.RolloutReported:
    """Return the event of a report: its metadata without tokens. Progress is sorted by group, which journals encode in
    a short form."""
    return ev.RolloutReported(
        instance=instance,
        version=report.version,
        progressed=tuple(
            ev.Progressed(trajectory=output.segment.trajectory, length=output.segment.end)
            for output in sorted(report.outputs, key=lambda output: output.segment.trajectory)
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
