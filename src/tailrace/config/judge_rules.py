"""Rules between settings of the reward `judge` and others."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from tailrace.config.judge_settings import JudgeSettings
from tailrace.config.judge_use import JUDGE, named_rewards
from tailrace.config.settings import Settings


def judge_rules(settings: Settings) -> Iterator[str]:
    judge = settings.reward.judge
    if JUDGE in named_rewards(settings) and (sentence := missing_judge(judge)):
        yield sentence
    if "{response}" not in judge.prompt + judge.reply:
        yield "reward.judge.prompt shows the judge no response: it needs the field {response}"
    if len(judge.answers) == 1:
        yield "reward.judge.answers has one word, so every score would be the same: give two or more, or none"
    yield from _of_server(judge) if judge.url is not None else _of_worker(settings, judge)


def missing_judge(judge: JudgeSettings) -> str | None:
    """Why there is no model that could be the judge; None if there is one."""
    if judge.model is not None:
        return None
    what = "the name that the server knows" if judge.url is not None else "a directory or a Hugging Face id"
    return f"the reward 'judge' needs a model: set reward.judge.model to {what}"


def _of_server(judge: JudgeSettings) -> Iterator[str]:
    if judge.url is not None and not _is_address(judge.url):
        yield f"reward.judge.url is {judge.url!r}; write an address such as http://10.0.0.1:8000/v1"
    if not judge.answers:
        yield "reward.judge.answers is empty, which means a reward head; a server (reward.judge.url) has none to read"
    if judge.memory_gb is not None:
        yield "reward.judge.memory_gb is for a judge that this run holds; leave it out with reward.judge.url"
    if judge.placement == "own":
        yield "reward.judge.placement 'own' is for a judge that this run holds; leave it out with reward.judge.url"


def _of_worker(settings: Settings, judge: JudgeSettings) -> Iterator[str]:
    if judge.reading == "text":
        yield "reward.judge.reading 'text' needs a server that writes: set reward.judge.url"
    if judge.memory_gb is not None and settings.model.device == "cpu":
        yield "reward.judge.memory_gb limits the memory of a GPU, but model.device is 'cpu'"


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is no number
        return False
    return is_whole and url.isascii() and url.isprintable() and " " not in url and not parts.query
