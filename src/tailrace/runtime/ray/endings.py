"""Why an actor ended, as a sentence for the journal and the user."""

from __future__ import annotations

import re

from ray import exceptions

_CAUSE = re.compile(r"(The actor (?:is dead|died) because|The actor \S+ is unavailable:)\s*(?P<cause>.*)", re.DOTALL)
_ADVICE = re.compile(
    r"[.]?\s*(Some common causes include|To troubleshoot|If the process was killed by|The task may or may not"
    r"|rpc_code).*",
    re.DOTALL,
)


def reason_of(name: str, place: str, error: BaseException) -> str:
    """``place``: where the worker ran, with a preposition; empty if it had not started."""
    worker = f"worker {name!r}{place}"
    text = str(error)
    if isinstance(error, exceptions.OutOfMemoryError) or "memory pressure" in text or "OutOfMemory" in text:
        return f"{worker} was killed by Ray, because its node was short of memory: {_cause(text)}"
    if isinstance(error, exceptions.ActorUnavailableError):
        return f"{worker} cannot be reached any more: {_cause(text)}"
    if "node" in text and re.search(r"node (has |was |is )?(died|dead|terminated|preempted|removed|lost)", text):
        return f"{worker} was lost with its node: {_cause(text)}"
    if isinstance(error, exceptions.RayTaskError):
        return f"{worker} failed: {text.strip().splitlines()[-1]}"
    if isinstance(error, exceptions.RayActorError):
        return f"{worker} was killed or crashed: {_cause(text)}"
    return f"{worker} is lost, because Ray failed: {type(error).__name__}: {_cause(text)}"


def _cause(text: str) -> str:
    """Ray's own words about the cause, without its general advice, in one line."""
    found = _CAUSE.search(text)
    cause = found["cause"] if found else text
    return " ".join(_ADVICE.sub("", cause).split()) or "Ray does not say why"
