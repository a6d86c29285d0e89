"""Runs programs against test cases: one sandbox for each program, one process in it for each case.

    strong   bubblewrap isolates the program (``bubblewrap.py``)
    weak     limits and a process group, no isolation (``weak.py``)

What is expected never enters the sandbox. It tells what a program answered, and the answer is compared here. A program
that breaks its sandbox gets `crashed` for that case; the next case has a fresh sandbox.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

from tailrace.rewards.sandbox.bubblewrap import SCRATCH, find_bubblewrap, isolating_command
from tailrace.rewards.sandbox.cases import (
    CallCase,
    Case,
    CaseResult,
    ProgramLimits,
    ProgramResult,
    SandboxError,
    StdinCase,
    Verdict,
)
from tailrace.rewards.sandbox.comparison import is_output_right, is_result_right
from tailrace.rewards.sandbox.foresight import needed_modules, needed_names
from tailrace.rewards.sandbox.harness import EXIT_MEMORY, EXIT_NOT_JSON
from tailrace.rewards.sandbox.inside import Claim, Inside, Lost
from tailrace.rewards.sandbox.interpreter import Interpreter
from tailrace.rewards.sandbox.memory_group import MemoryGroup, MemoryParent
from tailrace.rewards.sandbox.slots import Slot
from tailrace.rewards.sandbox.syscall_filter import filter_bytes

_LATE_S = 5.0
"""Seconds after a case's limit at which the whole sandbox is killed, because the harness should have answered."""
_SIGKILL = 9
_SMALL_BYTES = 32 << 10
_FAR_FUTURE = 1e12


class Mode(StrEnum):
    STRONG = "strong"
    WEAK = "weak"


class Sandbox:
    """Owns what one process needs to run programs, one after the other: a user id, and where memory is counted."""

    def __init__(
        self, mode: Mode, limits: ProgramLimits, interpreter: Interpreter, slot: Slot | None, parent: MemoryParent | str
    ) -> None:
        self.mode, self.limits = mode, limits
        self._interpreter, self._slot, self._parent = interpreter, slot, parent
        self._harness = interpreter.harness()
        self._num_started = 0

    @classmethod
    def open(
        cls,
        *,
        mode: Mode = Mode.STRONG,
        limits: ProgramLimits | None = None,
        slot: int | None = None,
        interpreter: str | None = None,
    ) -> Self:
        """Raise ``SandboxError`` if programs cannot be run in this mode here. `slot`: take the user id with this
        number, as root; default: any that is free."""
        found, limits = Interpreter.find(interpreter), limits or ProgramLimits()
        if mode is Mode.WEAK:
            return cls(mode, limits, found, None, "mode weak does not use one")
        find_bubblewrap()
        filter_bytes(platform.machine())
        parent = MemoryParent.find()
        if isinstance(parent, MemoryParent):
            parent.remove_left()
        return cls(mode, limits, found, Slot.take(slot) if os.geteuid() == 0 else None, parent)

    @property
    def note(self) -> str:
        """What is not limited here; empty if everything is."""
        if self.mode is Mode.WEAK or isinstance(self._parent, MemoryParent):
            return ""
        return (
            "no memory cgroup can be made, so memory is limited for each process of a program, not for all together "
            f"({self._parent})"
        )

    def run(
        self,
        program: str,
        cases: Sequence[Case],
        case_limits_s: Sequence[float] | None = None,
        *,
        stop_at_first_failure: bool = True,
        tolerance: float = 0.0,
        total_s: float | None = None,
    ) -> ProgramResult:
        """Run a program against its cases, in order. `case_limits_s`: seconds for each case; `total_s`: for all of
        them together."""
        limits = [self.limits.case_s] * len(cases) if case_limits_s is None else list(case_limits_s)
        until = _FAR_FUTURE if total_s is None else time.monotonic() + total_s
        asked = [_Asked.of(case, limit_s, until) for case, limit_s in zip(cases, limits, strict=True)]
        results: list[CaseResult] = []
        while len(results) < len(asked):
            with self._started(program, cases) as (inside, group):
                for result in self._run_cases(inside, group, asked[len(results) :], tolerance):
                    results.append(result)
                    if stop_at_first_failure and result.verdict is not Verdict.PASSED:
                        return ProgramResult(cases=tuple(results), num_cases=len(cases))
        return ProgramResult(cases=tuple(results), num_cases=len(cases))

    def try_out(self) -> None:
        """Start a sandbox and end it; ``SandboxError`` if that does not work here."""
        with self._started("", []):
            pass

    def close(self) -> None:
        if self._slot is not None:
            self._slot.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run_cases(
        self, inside: Inside, group: MemoryGroup | None, asked: Sequence[_Asked], tolerance: float
    ) -> Iterator[CaseResult]:
        """Results of the cases, up to the one that breaks the sandbox. While a case runs, the next one is handed over
        already, so that it need not wait for this process."""
        num_sent = 0
        for number, current in enumerate(asked):
            try:
                while num_sent <= number or (num_sent == number + 1 < len(asked) and asked[num_sent].is_small):
                    inside.send(asked[num_sent].head, asked[num_sent].body)
                    num_sent += 1
                claim = inside.receive(limit_s=current.limit_s + _LATE_S, most_bytes=self.limits.output_kb * 1024)
            except Lost as error:
                ran_out = group is not None and group.has_killed()
                verdict = Verdict.MEMORY if ran_out else Verdict.TIME if error.is_late else Verdict.CRASHED
                detail = f"the sandbox was lost: {error}"
                yield CaseResult(verdict=verdict, seconds=current.limit_s, detail=detail)
                return
            ran_out = claim.code == -_SIGKILL and group is not None and group.has_killed()
            yield judge(claim, current.case, ran_out=ran_out, tolerance=tolerance)

    @contextmanager
    def _started(self, program: str, cases: Sequence[Case]) -> Iterator[tuple[Inside, MemoryGroup | None]]:
        self._num_started += 1
        with ExitStack() as stack:
            group = None
            if isinstance(self._parent, MemoryParent):
                name = f"{os.getpid()}-{self._num_started}"
                group = self._parent.make(name, self.limits.memory_mb << 20)
                stack.callback(group.remove)
            scratch = SCRATCH
            if self.mode is Mode.WEAK:
                scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-program-"))
            inside = self._start(scratch)
            stack.callback(inside.end)
            self._check(inside.begin(self._harness))
            if group is not None:
                group.add(inside.harness_pid)
            inside.prepare(self._settings(program, cases, scratch), program.encode("utf-8", "replace"))
            yield inside, group

    def _start(self, scratch: str) -> Inside:
        ours, theirs = socket.socketpair()
        with ExitStack() as unless_started, theirs:
            unless_started.callback(ours.close)
            if self.mode is Mode.WEAK:
                command = self._interpreter.command(theirs.fileno(), self.mode)
                inside = Inside(_popen(command, [theirs.fileno()], scratch), ours, None)
            else:
                told, tell = os.pipe()
                unless_started.callback(os.close, told)
                inside = Inside(self._isolate(theirs.fileno(), tell), ours, told)
            unless_started.pop_all()
        return inside

    def _isolate(self, channel: int, tell: int) -> subprocess.Popen[bytes]:
        rules = _readable(filter_bytes(platform.machine()))
        try:
            command = isolating_command(
                find_bubblewrap(),
                self._interpreter,
                self.limits,
                uid=None if self._slot is None else self._slot.uid,
                channel=channel,
                rules=rules,
                told=tell,
            )
            return _popen(command, [channel, rules, tell], "/")
        finally:
            os.close(rules)
            os.close(tell)

    def _settings(self, program: str, cases: Sequence[Case], scratch: str) -> dict[str, object]:
        return {
            "memory_mb": self.limits.memory_mb,
            "output_bytes": self.limits.output_kb * 1024,
            "processes": self.limits.processes,
            "open_files": self.limits.open_files,
            "scratch": scratch,
            "modules": needed_modules(program),
            "names": needed_names(program),
            "has_calls": not all(isinstance(case, StdinCase) for case in cases),
        }

    def _check(self, about: dict[str, Any]) -> None:
        """Refuse to run programs if the isolation is not what it should be."""
        if self.mode is Mode.WEAK:
            return
        uid = os.geteuid() if self._slot is None else self._slot.uid
        wanted = {"pid": 1, "uid": uid, "CapEff": 0, "CapPrm": 0, "NoNewPrivs": 1, "Seccomp": 2}
        if self._slot is not None:
            wanted["CapBnd"] = 0
        wrong = {name: about.get(name) for name, value in wanted.items() if about.get(name) != value}
        if wrong:
            raise SandboxError(f"bubblewrap does not isolate programs as it should: {wrong}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """A case as the harness is told it."""

    case: Case
    limit_s: float
    head: bytes
    """Function, limit, and when the time of all cases is over, in lines."""
    body: bytes

    @classmethod
    def of(cls, case: Case, limit_s: float, until: float) -> Self:
        if isinstance(case, CallCase):
            function, body = case.function, json.dumps(case.arguments)
        else:
            function, body = "", case.stdin
        head = f"{function}\n{limit_s}\n{until}".encode()
        return cls(case=case, limit_s=limit_s, head=head, body=body.encode("utf-8", "replace"))

    @property
    def is_small(self) -> bool:
        """Whether it fits into the buffer of the channel, however large the answer before it is."""
        return len(self.body) < _SMALL_BYTES


def judge(claim: Claim, case: Case, *, ran_out: bool, tolerance: float) -> CaseResult:
    """The verdict on what a program answered. `ran_out`: the kernel killed it for want of memory."""
    if claim.is_cut:
        verdict = Verdict.TIME
    elif claim.is_flood:
        verdict = Verdict.OUTPUT
    elif ran_out or claim.code == EXIT_MEMORY:
        verdict = Verdict.MEMORY
    elif claim.code == EXIT_NOT_JSON:
        verdict = Verdict.WRONG
    elif claim.code or (not isinstance(case, StdinCase) and not claim.result):
        verdict = Verdict.CRASHED
    else:
        is_right = (
            is_output_right(claim.output, case.stdout, tolerance)
            if isinstance(case, StdinCase)
            else is_result_right(claim.result, case, tolerance)
        )
        verdict = Verdict.PASSED if is_right else Verdict.WRONG
    detail = "" if verdict is Verdict.PASSED else claim.tail.strip()
    if verdict is Verdict.CRASHED and not detail:
        detail = "it ended before its function returned" if not claim.code else f"it ended with code {claim.code}"
    return CaseResult(verdict=verdict, seconds=claim.seconds, detail=detail)


def _popen(command: list[str], descriptors: list[int], folder: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env={},  # /proc/1/environ would show it to programs
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        pass_fds=descriptors,
        start_new_session=True,  # Ctrl-C in a terminal must not end programs: their scores would change
    )


def _readable(data: bytes) -> int:
    """A descriptor from which these bytes can be read."""
    reading, writing = os.pipe()
    try:
        os.write(writing, data)
    finally:
        os.close(writing)
    return reading
