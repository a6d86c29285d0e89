from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from multiprocessing.connection import Connection

import pytest

from tailrace.workers.link import LINK_VARIABLE, ProcessLink, connect


def pair() -> tuple[ProcessLink, Connection]:
    ours, theirs = socket.socketpair()
    return ProcessLink(Connection(ours.detach())), Connection(theirs.detach())


def run_worker(code: str, *, messages: list[bytes]) -> subprocess.CompletedProcess[str]:
    """Run `code` as a worker whose controller sends `messages` and goes away."""
    ours, theirs = socket.socketpair()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), LINK_VARIABLE: str(theirs.fileno())}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True
    )
    theirs.close()
    with Connection(ours.detach()) as connection:
        for message in messages:
            connection.send_bytes(message)
    _, errors = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, "", errors)


def test_receive_polls_waits_and_keeps_the_order() -> None:
    link, controller = pair()
    assert link.receive(0) is None
    assert link.receive(0.01) is None
    for number in range(3):
        controller.send_bytes(pickle.dumps(number))
    assert [link.receive(), link.receive(30.0), link.receive()] == [0, 1, 2]
    link.send(("done", 1.5))
    assert pickle.loads(controller.recv_bytes()) == ("done", 1.5)
    # The pair is left open on purpose: the end of a link ends the process that holds it.
    KEPT_OPEN.append((link, controller))


KEPT_OPEN: list[object] = []


def test_the_end_of_the_link_ends_the_process_even_while_its_main_thread_is_busy() -> None:
    code = "from tailrace.workers.link import connect\nlink = connect()\nwhile True: pass"
    assert run_worker(code, messages=[pickle.dumps("init")]).returncode == 0


def test_a_message_that_cannot_be_read_ends_the_process_and_says_why() -> None:
    code = "from tailrace.workers.link import connect\nlink = connect()\nlink.receive()"
    result = run_worker(code, messages=[b"this is not a pickle"])
    assert result.returncode != 0
    assert "UnpicklingError" in result.stderr


def test_a_worker_started_by_hand_is_told_so() -> None:
    assert LINK_VARIABLE not in os.environ
    with pytest.raises(RuntimeError, match="started by its controller"):
        connect()
