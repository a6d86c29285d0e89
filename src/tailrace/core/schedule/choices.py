"""The settings of a schedule that are one of a few named choices."""

from __future__ import annotations

from enum import Enum


class Leftovers(Enum):
    """What happens to groups that are unfinished when the batch is full."""

    WAIT = "wait"
    """Nothing is left over: a round launches exactly a batch and ends when all of it is complete."""
    DROP = "drop"
    """Their responses are aborted and their prompts are dropped."""
    DEFER = "defer"
    """Their responses are aborted. Their prompts join the long queue and are launched again in a long round."""
    RESUME = "resume"
    """Their responses are interrupted and continue in the next round, before new prompts are launched."""
    KEEP = "keep"
    """They continue to run. There are no rounds: training takes a batch whenever enough groups are complete."""


class Placement(Enum):
    """How rollout and training share devices: in turn, at the same time, or not at all."""

    COLOCATED = "colocated"
    """The same devices in turn: rollout releases its memory while training runs."""
    SHARED = "shared"
    """The same devices at the same time: both stay in memory."""
    DISAGGREGATED = "disaggregated"
    """Different devices."""


class Stream(Enum):
    """Whether complete groups are trained while their round is still running."""

    NEVER = "never"
    """No: training begins when the batch is full."""
    ALWAYS = "always"
    """Yes: each time that the trainer is free and enough groups are complete."""
    ONCE = "once"
    """Yes, but only one piece of each batch."""


class EpochEnd(Enum):
    """What happens, when a pass over the data ends, to a long queue that is shorter than a batch."""

    CARRY = "carry"
    """The queue is kept for the next pass."""
    FLUSH = "flush"
    """The queued prompts are trained as a smaller batch before the next pass begins."""


class VersionCap(Enum):
    """What happens to an unfinished response that already has tokens of ``max_versions_per_sample`` versions."""

    FINISH = "finish"
    """It is not interrupted again: the round waits until it ends."""
    RESTART = "restart"
    """It is aborted and generated again from its prompt."""


class OnStuck(Enum):
    """What happens to the unfinished groups of a batch when training has waited ``max_stuck_s`` for them."""

    RESTART = "restart"
    """Their responses are aborted and generated again from their prompts."""
    DROP = "drop"
    """They are dropped, and other prompts take their places."""
