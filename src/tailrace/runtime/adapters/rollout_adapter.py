"""The adapter of rollout workers: turns commands into messages, and messages and ended workers into events.

Payload is written before its event is posted, so an event never refers to tokens that are not in the store
(``rollout_intake``). Messages to an instance go through one thread, in order; so do messages from all instances. What
is heard in one turn of the event loop is written together. Every event says which start of the instance it comes from.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import InstanceId, ResponseId
from tailrace.core.schedule import Parallelism
from tailrace.engines.contract import Request
from tailrace.runtime.adapters.first_messages import init_of_size
from tailrace.runtime.adapters.rollout_intake import InstanceStart, RolloutIntake
from tailrace.runtime.launchers.worker import OPENMP_PASSIVE_WAIT, Launcher, WorkerHandle, WorkerSpec
from tailrace.runtime.threads.work_thread import WorkThread
from tailrace.store.payload_store import PayloadStore
from tailrace.weights.address import ChannelAddress
from tailrace.workers.messages import Abort, Generate, Pull, Refused, Release, RolloutInit, Stop
from tailrace.workers.report_interval import gather_s

ONE_SIZE = Parallelism()
Post = Callable[[ev.Event], None]


class RolloutAdapter:
    """Owns the workers of the instances."""

    def __init__(
        self,
        init: RolloutInit,
        *,
        launch: Launcher,
        request: Callable[[ResponseId, int], Request],
        channel: Callable[[], ChannelAddress],
        store: PayloadStore,
        post: Post,
        work: WorkThread,
        env: Callable[[int], Mapping[str, str]] = lambda instance: {},
        parallelism: Parallelism = ONE_SIZE,
    ) -> None:
        """``work``: the thread that reads and writes payload. ``env``: more environment variables of the worker of an
        instance. ``parallelism``: which instances have which parallel size."""
        self._env, self._parallelism = env, parallelism
        self._init, self._launch, self._request, self._channel = init, launch, request, channel
        self._intake, self._post, self._work = RolloutIntake(store), post, work
        self._workers: dict[InstanceId, WorkerHandle] = {}
        self._senders: dict[InstanceId, InstanceStart] = {}
        """The last start of each instance."""
        self._heard: list[tuple[InstanceStart, object]] = []
        """Messages of this turn of the event loop, and what became of workers."""
        self._endings: set[asyncio.Future[None]] = set()
        """Retired workers that are being ended."""

    def start(self, command: do.StartInstance) -> None:
        instance, init = command.instance, self._init_of(command.size)
        sender = self._senders[instance] = InstanceStart(instance, command.incarnation)
        spec = WorkerSpec(
            name=f"rollout-{instance}",
            entry="tailrace.workers.rollout_worker:serve",
            init=init,
            env=OPENMP_PASSIVE_WAIT | dict(self._env(instance)),
            gather_s=gather_s(init.rollout.num_instances),
        )
        self._workers[instance] = self._launch(
            spec,
            hear=lambda message: self._hear(sender, message),
            lose=lambda reason: self._lose(sender, reason),
        )

    def _init_of(self, size: int) -> RolloutInit:
        layout = self._parallelism.layout(size)
        return self._init if layout is None else init_of_size(self._init, layout)

    def kill(self, command: do.KillInstance) -> None:
        # If the worker has just ended, it is no longer here, and InstanceLost is already in the inbox.
        if (worker := self._workers.get(command.instance)) is not None:
            worker.kill()

    def kill_all(self) -> None:
        for worker in self._workers.values():
            worker.kill()

    def retire(self, command: do.StopInstance) -> None:
        """End the worker of an instance that has no work. A parked instance may be started again later."""
        instance, worker = command.instance, self._workers.pop(command.instance, None)
        if worker is None:
            return  # it has just ended; InstanceLost is on its way to the inbox

        sender = self._senders[instance]

        def tell(ending: asyncio.Future[None]) -> None:
            self._endings.discard(ending)
            self._hear(sender, ev.InstanceStopped(instance=instance))

        ending = asyncio.ensure_future(worker.stop(grace_s=2.0))
        self._endings.add(ending)
        ending.add_done_callback(tell)

    def submit(self, command: do.Submit) -> None:
        sender = self._senders[command.instance]

        def make() -> Generate:
            self._intake.give(sender, command.dispatches)
            return Generate(requests=tuple(self._request(*dispatch) for dispatch in command.dispatches))

        self._send(command.instance, make)

    def interrupt(self, command: do.Interrupt) -> None:
        self._send(command.instance, lambda: Stop(responses=command.responses))

    def abort(self, command: do.Abort) -> None:
        self._send(command.instance, lambda: Abort(responses=command.responses))

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

    def _hear(self, sender: InstanceStart, message: object) -> None:
        if isinstance(message, Refused) and self._senders[sender.instance] != sender:
            return  # it would end the run
        if not self._heard:
            asyncio.get_running_loop().call_soon(self._pass_on)
        self._heard.append((sender, message))

    def _pass_on(self) -> None:
        heard, self._heard = self._heard, []
        self._work.do(lambda: self._intake.events(heard), then=self._post_all)

    def _post_all(self, events: Sequence[ev.Event]) -> None:
        for event in events:
            self._post(event)

    def _lose(self, sender: InstanceStart, reason: str) -> None:
        if self._senders[sender.instance] == sender:
            self._workers.pop(sender.instance, None)
        lost = ev.InstanceLost(instance=sender.instance, reason=reason)
        self._hear(sender, lost)  # after all that it has said
