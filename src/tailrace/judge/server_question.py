"""What an OpenAI-compatible server is asked about a response, and the score that its reply means.

Two ways to read the reply:

* log-probs: the server generates one token and tells the 20 likeliest. The score is the mean of the answer words'
  values, weighted by their probabilities among themselves. A word that is not among the 20 counts as impossible.
* text: the judge writes. The last answer word in its text counts, as a whole word. Upper and lower case count only if
  two answer words differ in nothing else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.judge.template import AnswerWord, JudgeTemplate

_MOST_LOGPROBS = 20
"""Most that servers tell at one place."""
_SHOWN = 200
_HIGHEST_LOGPROB = 0.01
"""A little above 0, because servers compute log-probs in low precision."""
_HIGHEST_SUM = 1.05
"""What probabilities may add up to: 1, with some room for the same reason."""


class NoAnswerWord(ValueError):
    """The judge answered with something else than an answer word."""


class UnreadableReply(ValueError):
    """The reply lacks what was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerScore:
    score: float
    extras: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerQuestion:
    model: str
    template: JudgeTemplate
    answers: Sequence[AnswerWord]
    writes: bool
    max_reply_length: int

    @property
    def path(self) -> str:
        return "/chat/completions" if self.template.is_chat else "/completions"

    def body(self, fields: Mapping[str, str]) -> dict[str, Any]:
        """The request about a response with these fields. ``KeyError`` if a field is missing."""
        user, assistant = self.template.filled(fields)
        asked: dict[str, Any] = {"model": self.model, "temperature": 0}
        asked["max_tokens"] = self.max_reply_length if self.writes else 1
        if self.template.is_chat:
            asked["messages"] = [{"role": "user", "content": user}]
            asked["messages"] += [{"role": "assistant", "content": assistant}] if assistant else []
        else:
            asked["prompt"] = user + assistant
        if self.writes:
            return asked
        if self.template.is_chat:
            return asked | {"logprobs": True, "top_logprobs": _MOST_LOGPROBS}
        return asked | {"logprobs": _MOST_LOGPROBS}

    def read(self, reply: Any) -> ServerScore:
        """``UnreadableReply`` or ``NoAnswerWord``, with a sentence, if the reply has no score."""
        try:
            choice = reply["choices"][0]
            found = self._written(choice) if self.writes else self._weighed(choice)
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            what = "text" if self.writes else "log-probs"
            raise UnreadableReply(f"it has no {what}: {_clipped(str(reply))}") from error
        usage = reply.get("usage")
        count = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
        return ServerScore(
            score=found.score,
            extras={**found.extras, **({"num_tokens": float(count)} if isinstance(count, int) else {})},
        )

    def _written(self, choice: Any) -> ServerScore:
        text = (choice["message"]["content"] if self.template.is_chat else choice["text"]) or ""
        answers = sorted(self.answers, key=lambda answer: len(answer.word), reverse=True)
        is_any_case = len({answer.word.casefold() for answer in answers}) == len(answers)
        words = "|".join(f"({re.escape(answer.word)})" for answer in answers)
        found = [*re.finditer(rf"(?<!\w)(?:{words})(?!\w)", text, re.IGNORECASE if is_any_case else 0)]
        if not found:
            raise NoAnswerWord(f"the judge wrote no answer word ({self._words()}): {_clipped(text[-_SHOWN:])}")
        return ServerScore(score=answers[(found[-1].lastindex or 1) - 1].value)

    def _weighed(self, choice: Any) -> ServerScore:
        likeliest = self._likeliest(choice)
        values = {answer.word: answer.value for answer in self.answers}
        shares = {word: likeliest[word] for word in values if word in likeliest}
        if not shares:
            raise NoAnswerWord(
                f"no answer word ({self._words()}) is among the {_MOST_LOGPROBS} likeliest tokens of the judge, which"
                f" are {_clipped(_listed(likeliest))}"
            )
        mass = sum(shares.values())
        if mass == 0:  # servers write a very low number for what is impossible
            raise NoAnswerWord(f"the answer words ({_listed(shares)}) have the probability 0")
        if mass > _HIGHEST_SUM:
            raise UnreadableReply(f"the answer words ({_listed(shares)}) have together the probability {mass:.3g}")
        score = sum(values[word] * share for word, share in shares.items()) / mass
        return ServerScore(score=score, extras={"answer_mass": mass})

    def _likeliest(self, choice: Any) -> dict[str, float]:
        """Probabilities of the first token, by its text. Different tokens may have the same text."""
        logprobs = choice["logprobs"]
        if self.template.is_chat:
            told = [(each["token"], each["logprob"]) for each in logprobs["content"][0]["top_logprobs"]]
        else:
            told = list(logprobs["top_logprobs"][0].items())
        found: dict[str, float] = {}
        for token, logprob in told:
            found[token] = found.get(token, 0.0) + _probability(token, logprob)
        return found

    def _words(self) -> str:
        return _listed([answer.word for answer in self.answers])


def _probability(token: str, logprob: Any) -> float:
    """``UnreadableReply`` if the log-prob is none."""
    if isinstance(logprob, int | float) and -math.inf < logprob <= _HIGHEST_LOGPROB:
        return math.exp(logprob)
    raise UnreadableReply(f"{token!r} has the log-prob {_clipped(repr(logprob))}, which must be a number of at most 0")


def _listed(words: Iterable[str]) -> str:
    return ", ".join(map(repr, words))


def _clipped(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
