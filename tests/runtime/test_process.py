"""Real processes: small modules written into a temporary directory and started as workers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tailrace.runtime.process import WorkerProcess

ECHO = """
    from tailrace.workers.link import connect
    link = connect()
    while True:
        link.send(("echo", link.receive()))
"""
TOTAL_WAIT_S = 60.0


class Story:
    """What a worker said and how it ended, in order."""

    def __init__(self) -> None:
        self.messages: list[object] = []
        self.endings: list[str] = []
        self._changed = asyncio.Event()

    def on_message(self, message: object) -> None:
        assert not self.endings
        self.messages.append(message)
        self._changed.set()

    def on_exit(self, reason: str) -> None:
        self.endings.append(reason)
        self._changed.set()

    async def message(self, number: int) -> object:
        await self._until(lambda: len(self.messages) > number)
        return self.messages[number]

    async def ending(self) -> str:
        await self._until(lambda: bool(self.endings))
        return self.endings[0]

    async def _until(self, condition) -> None:
        async with asyncio.timeout(TOTAL_WAIT_S):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


def start(directory: Path, code: str, story: Story, init: object = "init") -> WorkerProcess:
    (directory / "the_worker.py").write_text(textwrap.dedent(code))
    return WorkerProcess.start(
        "the_worker",
        init,
        name="worker-0",
        log=directory / "worker.log",
        on_message=story.on_message,
        on_exit=story.on_exit,
        env={"PYTHONPATH": str(directory)},
    )


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(TOTAL_WAIT_S):
        while is_running(pid):
            await asyncio.sleep(0.01)


def test_messages_arrive_in_order_and_init_is_the_first(tmp_path: Path) -> None:
    async def scenario() -> None:
        story = Story()
        worker = start(tmp_path, ECHO, story, init={"a": 1})
        for number in range(100):
            worker.send(number)
        await story.message(100)
        assert story.messages == [("echo", {"a": 1}), *(("echo", number) for number in range(100))]
        assert worker.is_alive
        await worker.stop()
        assert not worker.is_alive
        assert story.endings == []

    asyncio.run(scenario())


def test_sending_much_to_a_worker_that_does_not_read_does_not_block(tmp_path: Path) -> None:
    code = """
        import time
        from tailrace.workers.link import connect
        time.sleep(0.5)
        link = connect()
        for _ in range(33):
            size = len(link.receive())
        link.send(size)
    """

    async def scenario() -> None:
        story = Story()
        worker = start(tmp_path, code, story, init=b"")
        for _ in range(32):
            worker.send(bytes(1_000_000))
        assert await story.message(0) == 1_000_000
        await worker.stop()

    asyncio.run(scenario())


def test_an_exit_code_is_reported_once_with_the_last_line_of_the_log(tmp_path: Path) -> None:
    code = """
        import sys
        from tailrace.workers.link import connect
        link = connect()
        link.send("last words")
        raise ValueError("the disk is made of cheese")
    """

    async def scenario() -> None:
        story = Story()
        (tmp_path / "worker.log").write_text("a line of an earlier worker\n")
        start(tmp_path, code, story)
        assert await story.ending() == "worker 'worker-0' exited with code 1: ValueError: the disk is made of cheese"
        assert story.messages == ["last words"]
        await asyncio.sleep(0.05)
        assert len(story.endings) == 1

    asyncio.run(scenario())


def test_a_line_of_an_earlier_worker_is_not_taken_for_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        story = Story()
        (tmp_path / "worker.log").write_text("a line of an earlier worker\n")
        start(tmp_path, "raise SystemExit(3)", story)
        assert await story.ending() == "worker 'worker-0' exited with code 3"

    asyncio.run(scenario())


def test_a_killed_worker_is_reported_by_the_name_of_the_signal_and_leaves_no_zombie(tmp_path: Path) -> None:
    async def scenario() -> None:
        story = Story()
        worker = start(tmp_path, ECHO, story)
        await story.message(0)
        worker.kill()
        assert await story.ending() == "worker 'worker-0' was killed by SIGKILL"
        assert not Path(f"/proc/{worker.pid}").exists()
        worker.kill()
        worker.send("too late")

    asyncio.run(scenario())


def test_stop_kills_a_worker_whose_main_thread_is_busy(tmp_path: Path) -> None:
    code = """
        from tailrace.workers.link import connect
        link = connect()
        link.send("busy")
        while True:
            pass
    """

    async def scenario() -> None:
        story = Story()
        worker = start(tmp_path, code, story)
        await story.message(0)
        await worker.stop(grace_s=30.0)
        assert story.endings == []
        assert not Path(f"/proc/{worker.pid}").exists()

    asyncio.run(scenario())


def test_stop_kills_a_worker_stuck_in_c_code_after_the_grace(tmp_path: Path) -> None:
    code = """
        import re
        from tailrace.workers.link import connect
        link = connect()
        link.send("stuck")
        re.match("(a+)+$", "a" * 60 + "b")
    """

    async def scenario() -> None:
        story = Story()
        worker = start(tmp_path, code, story)
        await story.message(0)
        await worker.stop(grace_s=0.1)
        assert story.endings == []
        assert not Path(f"/proc/{worker.pid}").exists()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "start_grandchild", ["subprocess.Popen(['sleep', '1000']).pid", "os.fork() or time.sleep(1000)"]
)
def test_grandchildren_die_with_the_worker(tmp_path: Path, start_grandchild: str) -> None:
    code = f"""
        import os, subprocess, time
        from tailrace.workers.link import connect
        link = connect()
        link.send({start_grandchild})
        os._exit(4)
    """

    async def scenario() -> None:
        story = Story()
        start(tmp_path, code, story)
        grandchild = await story.message(0)
        assert await story.ending() == "worker 'worker-0' exited with code 4"
        assert isinstance(grandchild, int)
        await until_gone(grandchild)

    asyncio.run(scenario())


def test_a_worker_that_closes_its_link_is_ended(tmp_path: Path) -> None:
    code = """
        import os, time
        from tailrace.workers.link import LINK_VARIABLE
        os.close(int(os.environ[LINK_VARIABLE]))
        time.sleep(1000)
    """

    async def scenario() -> None:
        story = Story()
        start(tmp_path, code, story)
        assert await story.ending() == "worker 'worker-0' was killed by SIGKILL"

    asyncio.run(scenario())


def test_an_unreadable_message_ends_the_worker_with_a_reason(tmp_path: Path) -> None:
    code = """
        import time
        from tailrace.workers.link import connect
        class Private: ...
        link = connect()
        link.send(Private())
        time.sleep(1000)
    """

    async def scenario() -> None:
        story = Story()
        start(tmp_path, code, story)
        assert "sent a message that cannot be read" in await story.ending()

    asyncio.run(scenario())


CONTROLLER = """
import asyncio, sys
from pathlib import Path
from tailrace.runtime.process import WorkerProcess

async def scenario():
    WorkerProcess.start("the_worker", "init", name="w", log=None, env={"PYTHONPATH": sys.argv[1]},
                        on_message=lambda message: print(message, flush=True), on_exit=print)
    await asyncio.sleep(1000)

asyncio.run(scenario())
"""


@pytest.mark.parametrize("busy_with", ["time.sleep(1000)", "re.match('(a+)+$', 'a' * 60 + 'b')"])
def test_workers_and_grandchildren_die_with_a_killed_controller_without_a_main_guard(
    tmp_path: Path, busy_with: str
) -> None:
    code = f"""
        import os, re, subprocess, time
        from tailrace.workers.link import connect
        link = connect()
        grandchild = subprocess.Popen(["sleep", "1000"])
        link.send(f"{{os.getpid()}} {{grandchild.pid}}")
        {busy_with}
    """
    (tmp_path / "the_worker.py").write_text(textwrap.dedent(code))
    (tmp_path / "script.py").write_text(CONTROLLER)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as controller:
        assert controller.stdout is not None
        pids = [int(pid) for pid in controller.stdout.readline().split()]
        assert len(pids) == 2
        assert all(is_running(pid) for pid in pids)
        controller.kill()
    deadline = time.monotonic() + TOTAL_WAIT_S
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(is_running(pid) for pid in pids)
