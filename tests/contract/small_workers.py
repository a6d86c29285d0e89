"""Workers of a few lines, for tests of what starts them."""

from __future__ import annotations

import time

from tailrace.workers.link import Link


def echo(link: Link, init: object) -> None:
    link.send(("echo", init))
    while True:
        link.send(("echo", link.receive()))


def read_late(link: Link, init: int) -> None:
    """Receives so many messages, later than they are sent, and says how long the last one was."""
    time.sleep(0.5)
    size = 0
    for _ in range(init):
        message = link.receive()
        assert isinstance(message, bytes)
        size = len(message)
    link.send(size)


def fail(link: Link, init: object) -> None:
    link.send("last words")
    raise ValueError("the disk is made of cheese")


def leave(link: Link, init: object) -> None:
    link.send("last words")


def talk(link: Link, init: object) -> None:
    """Talks without end and hears nothing."""
    while True:
        link.send("bla")
        time.sleep(0.001)


def sleep(link: Link, init: object) -> None:
    link.send("busy")
    time.sleep(1000)


class Unreadable:
    """Can be written and not be read."""

    def __reduce__(self) -> tuple[object, ...]:
        return _raise, ()


def _raise() -> None:
    raise LookupError("no such class")


def babble(link: Link, init: object) -> None:
    link.send(Unreadable())
    time.sleep(1000)


def tell_patience(link: Link, init: object) -> None:
    """Says what it receives without waiting, with a short wait, and with a long one."""
    link.send((link.receive(0), link.receive(0.01)))
    link.send(link.receive(30.0))


def change(link: Link, init: list[int]) -> None:
    """Changes what it was given."""
    init.append(1)
    message = link.receive()
    assert isinstance(message, list)
    message.append(2)
    link.send((init, message))
