"""The controller's end of a worker that is a Ray actor. `runtime/launchers/worker.py` says what every worker does.

* One thread reads the actor's stream, another sends it messages: a full object store makes Ray's calls wait.
* When `lose` is called, Ray has been told to end the actor. Its process may live a moment longer; its CPUs and GPUs go
  to another worker only after it has ended.
* What the worker prints is appended to a file of the controller, wherever the worker runs.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from tailrace.runtime.launchers.delivery import Delivery
from tailrace.runtime.launchers.worker import Hear, Lose, WorkerSpec
from tailrace.runtime.ray.endings import reason_of
from tailrace.runtime.ray.letters import Began, Heard, Letter, Printed, WorkerEnded, read, write

_KILL_LIMIT_S = 60.0
"""Seconds after which a stopped worker that Ray does not end is given up."""


class RayWorker:
    """Owns one actor and the threads that talk to it. Use it from the event loop that started it."""

    def __init__(self, actor: Any, spec: WorkerSpec, *, log: Path, hear: Hear, lose: Lose) -> None:
        self.name = spec.name
        self._actor, self._log = actor, log
        self._delivery = Delivery(hear=hear, lose=lose)
        self._outbox: queue.SimpleQueue[Letter | None] = queue.SimpleQueue()
        self._place = ""
        self._is_over = threading.Event()
        self._is_killed = False
        stream = actor.run.remote(spec.entry, write(spec.init))
        threading.Thread(target=self._read, args=(stream,), name=f"{self.name}-reader", daemon=True).start()
        threading.Thread(target=self._write, name=f"{self.name}-writer", daemon=True).start()

    @property
    def is_alive(self) -> bool:
        return not self._is_over.is_set()

    def send(self, message: object) -> None:
        self._outbox.put(write(message))

    def kill(self) -> None:
        if self._is_over.is_set() or self._is_killed:
            return
        self._is_killed = True
        # In a thread, because it waits for Ray's answer.
        threading.Thread(target=self._end_actor, name=f"{self.name}-killer", daemon=True).start()

    async def stop(self, grace_s: float = 5.0) -> None:
        self._delivery.silence()
        self._outbox.put(None)
        if not await self._delivery.wait(grace_s):
            self.kill()
            await self._delivery.wait(_KILL_LIMIT_S)

    def _end_actor(self) -> None:
        # It may have ended already, or Ray may be going down, which can even raise SystemExit here.
        with contextlib.suppress(BaseException):
            ray.kill(self._actor)

    def _write(self) -> None:
        with contextlib.suppress(ray.exceptions.RayError):  # the reading thread tells
            while (letter := self._outbox.get()) is not None:
                self._actor.put.remote(letter)
            if not self._is_over.is_set():
                self._actor.close.remote()

    def _read(self, stream: Iterator[Any]) -> None:
        try:
            reason = self._follow(stream)
        except BaseException as error:  # noqa: BLE001  whatever ends the stream is the end of the worker
            if self._is_killed:
                reason = f"worker {self.name!r} was killed"
            else:
                reason = reason_of(self.name, self._place, error)
        self._is_over.set()
        self._end_actor()
        self._outbox.put(None)
        self._delivery.end(reason)

    def _follow(self, stream: Iterator[Any]) -> str:
        """Pass on what the worker says until it ends; return why it has ended."""
        with self._log.open("ab", buffering=0) as log:
            for reference in stream:
                heard: list[Heard] = ray.get(reference)
                for one in heard:
                    match one:
                        case Began(node=node, pid=pid):
                            self._place = f" on node {node}"
                            log.write(f"{self.name} runs on node {node} as process {pid}\n".encode())
                        case Printed(data=data):
                            log.write(data)
                        case Letter():
                            try:
                                message = read(one)
                            except Exception as error:  # noqa: BLE001  unpickling runs any code
                                return f"worker {self.name!r} sent a message that cannot be read: {error!r}"
                            self._delivery.message(message)
                        case WorkerEnded(error=error_text):
                            ended = f"worker {self.name!r} ended"
                            return ended if error_text is None else f"{ended}: {error_text}"
        return f"worker {self.name!r} ended"
