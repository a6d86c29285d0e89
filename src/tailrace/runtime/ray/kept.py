"""A worker of user code on Ray: its actor runs it in a process of its own, and passes messages on.

So it has what every worker process has: it can be killed, a memory limit holds for it alone, and nothing that it
started outlives it (`workers/keeper.py`). When the actor is killed, the process and all below it die too.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading

from tailrace.runtime.launchers.process import WorkerProcess
from tailrace.runtime.launchers.worker import WorkerSpec
from tailrace.runtime.threads.loop_calls import call_from_thread
from tailrace.workers.link import Link

ENTRY = "tailrace.runtime.ray.kept:serve"
"""The function of the actor. Its `init` is the spec of the worker."""


class ProcessEnded(Exception):
    """The worker's process has ended. The text says how."""


class LinkClosed(BaseException):
    """The controller has closed the link. Like `SystemExit`, no worker is meant to catch it."""


def serve(link: Link, spec: WorkerSpec) -> None:
    asyncio.run(_serve(link, spec))


async def _serve(link: Link, spec: WorkerSpec) -> None:
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[str] = loop.create_future()
    # Ray kills the children of an actor's process when it ends the actor. That must not be the keeper's end.
    worker = WorkerProcess.start(spec, log=None, hear=link.send, lose=lost.set_result, is_apart=True)

    def pass_on() -> None:
        with contextlib.suppress(LinkClosed):
            while True:
                call_from_thread(loop, [(worker.send, link.receive())])
        worker.kill()

    threading.Thread(target=pass_on, name=f"{spec.name}-inbox", daemon=True).start()
    raise ProcessEnded(await lost)
