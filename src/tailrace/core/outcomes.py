"""The parts of a score, and how each ended. A reward that fails is an outcome of its response; it never ends the run by
itself."""

from __future__ import annotations

from enum import Enum


class Part(Enum):
    """A part of the score of a response. Each has a pool of workers, a queue and a time limit of its own."""

    FUNCTION = "function"
    """What reward functions return."""
    TESTS = "tests"
    """Test cases that the program in the response passes."""
    JUDGE = "judge"
    """What a model says about the response."""

    __hash__ = object.__hash__  # faster than the hash of Enum, which is a Python function


class Outcome(Enum):
    """How the reward of one response ended, or one part of it."""

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
    ABSTAINED = "abstained"
    """A part that has no opinion on this response; if all parts have none, the outcome of the response is INVALID."""
    ABORTED = "aborted"
    """The response was aborted before its reward was computed."""
