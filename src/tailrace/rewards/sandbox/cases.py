"""Test cases of a program, and what a program made of them.

A verdict is about the program, never about the reward: a program that is wrong, too slow or killed has a verdict and
scores 0. What the sandbox itself cannot do is a ``SandboxError``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    PASSED = "passed"
    WRONG = "wrong"
    TIME = "time"
    """It took longer than its limit."""
    MEMORY = "memory"
    OUTPUT = "output"
    """It wrote more than its limit."""
    CRASHED = "crashed"
    """It raised, exited with an error, was killed by a signal, or ended before its function returned."""


class SandboxError(RuntimeError):
    """The sandbox cannot be started, or broke for a reason that is not the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StdinCase:
    """The program reads `stdin` and must write `stdout`."""

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCase:
    """The program defines a function, or a class `Solution` with a method, that must return `value`."""

    function: str
    arguments: tuple[object, ...]
    """Values that JSON can express."""
    value: object
    also: tuple[object, ...] = ()
    """Other values that count as right."""


Case = StdinCase | CallCase


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    case_s: float = 6.0
    """Seconds of wall time that one case may take."""
    memory_mb: int = 1024
    """Megabytes of address space of each process. Where a memory cgroup can be made, also of all memory together."""
    output_kb: int = 4096
    """Kilobytes that a case may write to its output. A file may not be larger either."""
    tmp_mb: int = 64
    """Megabytes of `/tmp`. Input and output of a case are kept there too."""
    processes: int = 16
    """Processes and threads that a program may have at once."""
    open_files: int = 64

    def __post_init__(self) -> None:
        if self.case_s <= 0:
            raise ValueError(f"case_s must be above 0, got {self.case_s}")
        for name, least in (("memory_mb", 32), ("output_kb", 1), ("tmp_mb", 1), ("processes", 1), ("open_files", 16)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    verdict: Verdict
    seconds: float
    """Wall time, measured inside the sandbox."""
    detail: str = ""
    """The end of what the program wrote to stderr, or what happened to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramResult:
    cases: tuple[CaseResult, ...]
    """Results of the cases that ran, in order. The first failed case may be the last."""
    num_cases: int

    @property
    def verdict(self) -> Verdict:
        """`passed` if all cases passed, else the verdict of the first case that did not."""
        return next((case.verdict for case in self.cases if case.verdict is not Verdict.PASSED), Verdict.PASSED)

    @property
    def num_passed(self) -> int:
        return sum(case.verdict is Verdict.PASSED for case in self.cases)
