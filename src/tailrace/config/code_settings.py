"""Settings of the reward `code_tests`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveInt

from tailrace.config.section import Common, Seconds, Section


class CodeTestsSettings(Section):
    """The reward `code_tests`, which runs the program of a response against test cases."""

    mode: Common[Literal["strong", "weak"]] = "strong"
    """`strong`: programs are isolated by bubblewrap. `weak`: limits only; a program can read and change what this user
    can."""
    score: Common[Literal["all", "fraction"]] = "all"
    """`all`: 1 if every case passed, else 0; the first case that fails ends the program. `fraction`: the fraction of
    cases that passed."""
    case_timeout_s: Common[Seconds] = 6.0
    """Seconds of wall time that one case may take."""
    timeouts: Common[Literal["fixed", "adaptive"]] = "fixed"
    """`fixed`: every case has `case_timeout_s`. `adaptive`: once a response has passed all cases of a problem, a case
    has `timeout_factor` times the longest time that such a response took for it. Default: `adaptive` with the preset
    `rollpacker`, else `fixed`."""
    min_case_timeout_s: Common[Seconds] = 2.0
    """With adaptive timeouts, the shortest limit of a case."""
    timeout_factor: Common[float] = Field(default=1.5, ge=1)
    """With adaptive timeouts, how many times as long as the slowest correct response a case may take."""
    timeout_probe_share: float = Field(default=0.02, ge=0, le=1)
    """With adaptive timeouts, the share of responses that get `case_timeout_s`, so that slow and correct programs are
    still seen."""
    timeout_s: Common[Seconds] = 120.0
    """Most seconds that all cases of a response may take together. A response has the sum of the limits of its cases,
    or this if it is less."""
    workers: Common[PositiveInt | None] = None
    """Programs that run at the same time. Default: `reward.workers`."""
    memory_mb: Common[int] = Field(default=1024, ge=32)
    """Megabytes that a program may use."""
    max_cases: Common[PositiveInt | None] = None
    """Use at most this many cases of a problem, the first ones; null: all."""
    float_tolerance: Common[NonNegativeFloat] = 0.0
    """Numbers in an answer may differ from the expected ones by this much, relative or absolute."""
    output_kb: PositiveInt = 4096
    """Kilobytes that a program may write for one case."""
    tmp_mb: PositiveInt = 64
    """Megabytes of the `/tmp` of a program."""
    processes: PositiveInt = 16
    """Processes and threads that a program may have at once (mode strong)."""
