"""How a reward ended. A reward that fails is an outcome of its response, never a crash of the run."""

from __future__ import annotations

from enum import Enum


class Outcome(Enum):
    """How the reward of one response ended."""

    OK = "ok"
    """The function returned a finite number."""
    ERROR = "error"
    """The function raised an exception."""
    TIMEOUT = "timeout"
    """No answer within the time limit; the process was killed."""
    CRASH = "crash"
    """The process ended while it was scoring."""
    INVALID = "invalid"
    """The function returned something that is not a finite number."""
    ABORTED = "aborted"
    """The response was aborted before its reward was computed."""
