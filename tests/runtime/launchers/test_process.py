"""What worker processes do beyond what every worker does: exit codes, signals, logs, process groups.

The workers are real: small modules written into a temporary directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from contract.worker_story import TOTAL_WAIT_S, Story
from tailrace.runtime.launchers.process import WorkerProcess
from tailrace.runtime.launchers.worker import WorkerSpec
from tailrace.workers.keeper import _descendants


def start(directory: Path, code: str, story: Story) -> WorkerProcess:
    """``code``: the body of the worker's function, which knows ``link`` and ``init``."""
    write_worker(directory, code)
    spec = WorkerSpec(name="worker-0", entry="the_worker:serve", init="init", env={"PYTHONPATH": str(directory)})
    return WorkerProcess.start(spec, log=directory / "worker.log", hear=story.hear, lose=story.lose)


PREAMBLE = """
import os, re, signal, socket, subprocess, sys, time

def start_daemon():
    \"\"\"Forks twice and takes a session of its own, as daemons do.\"\"\"
    told, tell = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if pid := os.fork():
            os.write(tell, str(pid).encode())
            os._exit(0)
        time.sleep(1000)
    os.wait()
    return int(os.read(told, 20))

def serve(link, init):
"""

STARTED = {
    "a child": "subprocess.Popen(['sleep', '1000']).pid",
    "a fork": "os.fork() or time.sleep(1000)",
    "a child in a session of its own": "subprocess.Popen(['sleep', '1000'], start_new_session=True).pid",
    "a daemon": "start_daemon()",
    "a daemon without our environment": "int(subprocess.check_output('env -i setsid sleep 1000 >/dev/null & echo $!', "
    "shell=True))",
}
"""How a worker may start a process, as Python that gives the id of that process."""


def write_worker(directory: Path, code: str) -> None:
    body = textwrap.indent(textwrap.dedent(code), "    ")
    (directory / "the_worker.py").write_text(f"{PREAMBLE}{body}\n")


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


def test_an_exit_code_is_reported_once_with_the_last_line_of_the_log(tmp_path: Path) -> None:
    code = """
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


def test_a_worker_that_exits_with_125_is_not_said_to_hang_in_the_kernel(tmp_path: Path) -> None:
    """`timeout`, `docker run` and others exit with it."""

    async def scenario() -> None:
        story = Story()
        start(tmp_path, "raise SystemExit(125)", story)
        assert await story.ending() == "worker 'worker-0' exited with code 125"

    asyncio.run(scenario())


@pytest.mark.skipif(sys.platform != "linux", reason="there are keepers on Linux only")
def test_a_worker_does_not_have_the_note_of_its_keeper(tmp_path: Path) -> None:
    async def scenario() -> None:
        story = Story()
        start(tmp_path, "link.send([name for name in os.environ if name.startswith('TAILRACE_NOTE')])", story)
        await story.ending()
        assert story.messages == [[]]

    asyncio.run(scenario())


def test_the_link_at_the_end_of_an_error_of_pydantic_is_no_reason(tmp_path: Path) -> None:
    code = """
        import sys
        print("  Value error, 9 heads", "For further information visit https://x", sep="\\n    ", file=sys.stderr)
        raise SystemExit(1)
    """

    async def scenario() -> None:
        story = Story()
        start(tmp_path, code, story)
        assert await story.ending() == "worker 'worker-0' exited with code 1: Value error, 9 heads"

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
        worker = start(tmp_path, "link.send(init); time.sleep(1000)", story)
        await story.message(0)
        worker.kill()
        assert await story.ending() == "worker 'worker-0' was killed by SIGKILL"
        assert not Path(f"/proc/{worker.pid}").exists()

    asyncio.run(scenario())


def test_stop_kills_a_worker_whose_main_thread_is_busy(tmp_path: Path) -> None:
    code = """
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


@pytest.mark.parametrize("started", STARTED)
@pytest.mark.parametrize("ending", ["os._exit(4)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_what_a_worker_started_is_dead_when_its_end_is_told(tmp_path: Path, started: str, ending: str) -> None:
    code = f"""
        link.send({STARTED[started]})
        {ending}
    """

    async def scenario() -> None:
        story = Story()
        start(tmp_path, code, story)
        grandchild = await story.message(0)
        exited, killed = "exited with code 4", "was killed by SIGKILL"
        assert await story.ending() == f"worker 'worker-0' {exited if 'exit' in ending else killed}"
        assert isinstance(grandchild, int)
        assert not is_running(grandchild)

    asyncio.run(scenario())


@pytest.mark.parametrize("started", STARTED)
def test_what_a_worker_started_is_dead_when_the_worker_is_stopped(tmp_path: Path, started: str) -> None:
    code = f"""
        link.send({STARTED[started]})
        re.match("(a+)+$", "a" * 60 + "b")
    """

    async def scenario() -> None:
        story = Story()
        worker = start(tmp_path, code, story)
        grandchild = await story.message(0)
        await worker.stop(grace_s=0.0)
        assert isinstance(grandchild, int)
        assert not is_running(grandchild)

    asyncio.run(scenario())


def test_a_daemon_that_ends_beside_its_worker_leaves_no_zombie(tmp_path: Path) -> None:
    code = """
        daemon = start_daemon()
        os.kill(daemon, signal.SIGKILL)
        link.send(daemon)
        time.sleep(1000)
    """

    async def scenario() -> None:
        story = Story()
        worker = start(tmp_path, code, story)
        daemon = await story.message(0)
        async with asyncio.timeout(TOTAL_WAIT_S):
            while Path(f"/proc/{daemon}").exists():
                await asyncio.sleep(0.01)
        await worker.stop(grace_s=0.0)

    asyncio.run(scenario())


def test_a_worker_dies_with_its_keeper_and_a_daemon_that_holds_the_link_does_not_delay_the_news(tmp_path: Path) -> None:
    code = """
        link.send((os.getpid(), start_daemon()))
        time.sleep(1000)
    """

    async def scenario() -> None:
        story = Story()
        worker = start(tmp_path, code, story)
        told = await story.message(0)
        assert isinstance(told, tuple)
        pid, daemon = told
        os.kill(worker.pid, signal.SIGKILL)
        assert await story.ending() == "worker 'worker-0' was killed by SIGKILL"
        await until_gone(pid)
        os.kill(daemon, signal.SIGKILL)  # nobody is left who would do it

    asyncio.run(scenario())


def test_a_keeper_that_is_no_child_of_the_controller_outlives_what_kills_children(tmp_path: Path) -> None:
    """So it is with Ray, which kills the children of an actor's process."""
    write_worker(tmp_path, "link.send(start_daemon()); time.sleep(1000)")
    spec = WorkerSpec(name="w", entry="the_worker:serve", init="", env={"PYTHONPATH": str(tmp_path)})

    async def scenario() -> None:
        story = Story()
        worker = WorkerProcess.start(spec, log=None, hear=story.hear, lose=story.lose, is_apart=True)
        daemon = await story.message(0)
        assert isinstance(daemon, int)
        os.kill(worker.pid, signal.SIGKILL)
        await story.ending()  # closes the lifeline, as the end of the actor does
        await until_gone(daemon)

    asyncio.run(scenario())


def test_signals_that_end_a_process_do_not_end_the_keeper(tmp_path: Path) -> None:
    async def scenario() -> None:
        story = Story()
        worker = start(tmp_path, "link.send(1); link.receive(); link.send(2); time.sleep(1000)", story)
        await story.message(0)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1):
            os.kill(worker.pid, number)
        worker.send("are you there?")
        assert await story.message(1) == 2
        await worker.stop(grace_s=0.0)
        assert story.endings == []

    asyncio.run(scenario())


def test_a_worker_outlives_signals_to_stop_from_its_first_moment_on(tmp_path: Path) -> None:
    """Slurm and systemd signal every process of a run, also one that has just been started."""

    async def scenario() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            story = Story()
            worker = start(tmp_path, "link.send(1); time.sleep(1000)", story)
            while not story.messages and not story.endings:
                for pid in (worker.pid, *_descendants(worker.pid)):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, number)
                await asyncio.sleep(0)
            assert story.endings == []
            await worker.stop(grace_s=0.0)

    asyncio.run(scenario())


def test_a_worker_and_what_it_starts_can_be_ended_by_signals_as_usual(tmp_path: Path) -> None:
    """None of them stays blocked: not in the controller, and not in a program that a worker starts."""
    code = """
        blocked = "import signal; print(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
        link.send(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
        link.send(int(subprocess.run([sys.executable, "-c", blocked], capture_output=True, check=True).stdout))
        time.sleep(1000)
    """

    async def scenario() -> None:
        story = Story()
        worker = start(tmp_path, code, story)
        assert [await story.message(0), await story.message(1)] == [0, 0]
        await worker.stop(grace_s=0.0)

    asyncio.run(scenario())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


def test_a_stopped_keeper_does_not_keep_its_worker_alive(tmp_path: Path) -> None:
    async def scenario() -> None:
        story = Story()
        worker = start(tmp_path, "link.send(start_daemon()); time.sleep(1000)", story)
        daemon = await story.message(0)
        assert isinstance(daemon, int)
        os.kill(worker.pid, signal.SIGSTOP)
        worker.kill()
        assert await story.ending() == "worker 'worker-0' was killed by SIGKILL"
        assert not is_running(daemon)

    asyncio.run(scenario())


def test_a_worker_that_closes_its_link_is_ended(tmp_path: Path) -> None:
    code = """
        socket.socket(fileno=os.dup(link._connection.fileno())).shutdown(socket.SHUT_WR)
        time.sleep(1000)
    """

    async def scenario() -> None:
        story = Story()
        start(tmp_path, code, story)
        assert await story.ending() == "worker 'worker-0' was killed by SIGKILL"

    asyncio.run(scenario())


CONTROLLER = """
import asyncio, sys
from pathlib import Path
from tailrace.runtime.launchers.process import WorkerProcess
from tailrace.runtime.launchers.worker import WorkerSpec

async def scenario():
    spec = WorkerSpec(name="w", entry="the_worker:serve", init="init", env={"PYTHONPATH": sys.argv[1]})
    WorkerProcess.start(spec, log=None, hear=lambda message: print(message, flush=True), lose=print)
    await asyncio.sleep(1000)

asyncio.run(scenario())
"""


@pytest.mark.parametrize("busy_with", ["time.sleep(1000)", "re.match('(a+)+$', 'a' * 60 + 'b')"])
@pytest.mark.parametrize("started", ["a child", "a daemon"])
def test_workers_and_what_they_started_die_with_a_killed_controller_without_a_main_guard(
    tmp_path: Path, busy_with: str, started: str
) -> None:
    code = f"""
        link.send(f"{{os.getpid()}} {{{STARTED[started]}}}")
        {busy_with}
    """
    write_worker(tmp_path, code)
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
