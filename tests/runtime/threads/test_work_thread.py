"""Slow work leaves the event loop free, keeps its order, and does not fail in silence."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tailrace.runtime.threads.work_thread import WorkThread


def test_jobs_and_what_follows_them_keep_their_order_and_their_threads() -> None:
    async def run() -> list[tuple[str, int, bool]]:
        work, seen = WorkThread("test"), []
        main = threading.get_ident()
        for number in range(5):
            work.do(
                lambda number=number: seen.append(("job", number, threading.get_ident() == main)) or number,
                then=lambda number: seen.append(("then", number, threading.get_ident() == main)),
            )
        assert await work.ask(lambda: "last") == "last"
        await asyncio.sleep(0)
        work.close()
        return seen

    seen = asyncio.run(run())
    assert [(number, is_main) for kind, number, is_main in seen if kind == "job"] == [(n, False) for n in range(5)]
    assert [(number, is_main) for kind, number, is_main in seen if kind == "then"] == [(n, True) for n in range(5)]


def test_the_loop_goes_on_while_a_job_is_stuck() -> None:
    async def run() -> None:
        work, gate = WorkThread("test"), threading.Event()
        answer = asyncio.ensure_future(work.ask(gate.wait))
        asyncio.get_running_loop().call_later(0.01, gate.set)  # only a free loop can open the gate
        assert await answer
        work.close()

    asyncio.run(run())


def test_a_job_that_raises_goes_to_the_loops_exception_handler() -> None:
    async def run() -> dict[str, Any]:
        work, broken = WorkThread("test"), asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: broken.set_result(context))

        def fail() -> None:
            raise OSError("disk full")

        work.do(fail, then=lambda _: broken.set_exception(AssertionError("went on after a failure")))
        context = await broken
        work.close()
        return context

    assert str(asyncio.run(run())["exception"]) == "disk full"


def test_what_is_closed_forgets_the_jobs_it_has_not_begun() -> None:
    async def run() -> list[int]:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: done.append(-1))
        work, gate, done = WorkThread("test"), threading.Event(), []
        started = threading.Event()
        work.do(lambda: (started.set(), gate.wait()))
        work.do(lambda: done.append(1))
        await asyncio.get_running_loop().run_in_executor(None, started.wait)
        threading.Timer(0.01, gate.set).start()
        work.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return done

    assert asyncio.run(run()) == []


def test_a_question_that_raises_raises_where_it_was_asked() -> None:
    async def run() -> None:
        work = WorkThread("test")
        with pytest.raises(ZeroDivisionError):
            await work.ask(lambda: 1 // 0)
        assert await work.ask(lambda: 1) == 1
        work.close()

    asyncio.run(run())


def test_a_question_that_was_not_reached_is_cancelled_and_later_jobs_are_refused() -> None:
    async def run() -> None:
        work, gate, started = WorkThread("test"), threading.Event(), threading.Event()
        work.do(lambda: (started.set(), gate.wait()))
        asked = asyncio.ensure_future(work.ask(lambda: 1))
        await asyncio.get_running_loop().run_in_executor(None, started.wait)
        threading.Timer(0.01, gate.set).start()
        work.close()
        with pytest.raises(asyncio.CancelledError):
            await asked
        with pytest.raises(RuntimeError, match="'test' is closed"):
            work.do(lambda: None)

    asyncio.run(run())


def test_a_question_that_nobody_waits_for_any_more_disturbs_nobody() -> None:
    async def run() -> list[dict[str, Any]]:
        broken: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: broken.append(context))
        work, gate = WorkThread("test"), threading.Event()
        asked = asyncio.ensure_future(work.ask(gate.wait))
        await asyncio.sleep(0)
        asked.cancel()
        gate.set()
        assert await work.ask(lambda: 1) == 1
        work.close()
        return broken

    assert asyncio.run(run()) == []


def test_jobs_of_one_turn_are_answered_in_one_turn_although_one_of_them_raises() -> None:
    async def run() -> tuple[list[tuple[int, int]], list[str]]:
        loop, broken, turn, seen = asyncio.get_running_loop(), list[str](), 0, list[tuple[int, int]]()
        loop.set_exception_handler(lambda loop, context: broken.append(str(context["exception"])))

        def count_turns() -> None:
            nonlocal turn
            turn += 1
            loop.call_soon(count_turns)

        def job(number: int) -> int:
            if number == 2:
                raise OSError("disk full")
            return number

        def then(number: int) -> None:
            seen.append((number, turn))
            if number == 3:
                raise ValueError("not that one")

        work = WorkThread("test")
        count_turns()
        for number in range(5):
            work.do(lambda number=number: job(number), then=then)
        await work.ask(lambda: None)
        work.close()
        return seen, broken

    seen, broken = asyncio.run(run())
    assert [number for number, _ in seen] == [0, 1, 3, 4]
    assert len({turn for _, turn in seen}) == 1
    assert broken == ["disk full", "not that one"]


def test_a_job_that_hangs_is_left_behind_with_a_word() -> None:
    async def run() -> None:
        work, gate, started = WorkThread("test"), threading.Event(), threading.Event()
        work.do(lambda: (started.set(), gate.wait()))
        asked = asyncio.ensure_future(work.ask(lambda: 1))
        await asyncio.get_running_loop().run_in_executor(None, started.wait)
        said = work.close(limit_s=0.05)
        assert said == "the thread 'test' did not end within 0.05 s and is left behind: its job hangs"
        with pytest.raises(asyncio.CancelledError):
            await asked
        gate.set()
        assert work.close() is None

    asyncio.run(run())
