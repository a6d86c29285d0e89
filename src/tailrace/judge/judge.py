"""A judge: scores responses by what a model says about a text that shows them.

Two ways to read the score, each in one forward pass:

* answer words: the model is asked, and the log-probs of the words are read where its answer would begin. The score is
  the mean of the words' values, weighted by their probabilities among the words: of ``yes`` (1) and ``no`` (0) the
  probability of ``yes``.
* a reward head: the number that the head gives to the last token.

Before each pass as many layers as fit the memory budget are made resident. The scores do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from tailrace.judge.model import JudgeModel
from tailrace.judge.questions import Question
from tailrace.judge.template import YES_OR_NO, AnswerWord, JudgeTemplate, TemplateReader, answer_tokens
from tailrace.sizing.resident_layers import OffloadProfile, longest_pack, resident_layers

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeScore:
    score: float
    answer_mass: float | None = None
    """Probability of all answer words together: near 0, the model would answer something else. None: a reward head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """How much memory of the device a judge may take, and what it needs."""

    num_bytes: int
    profile: OffloadProfile

    def resident_layers(self, longest: int, num_tokens: int) -> int | None:
        """None: the pass does not fit."""
        return resident_layers(self.profile, budget_bytes=self.num_bytes, longest=longest, num_tokens=num_tokens)


class Judge:
    """Owns the model and the template."""

    def __init__(
        self,
        model: JudgeModel,
        template: JudgeTemplate,
        tokenizer: object,
        *,
        answers: Sequence[AnswerWord] = YES_OR_NO,
        budget: MemoryBudget | None = None,
    ) -> None:
        """``answers``: none: the model has a reward head. ``budget``: None: layers stay where they are."""
        self.model, self._budget = model, budget
        self._reader = TemplateReader(template, tokenizer)
        self._words = answer_tokens([answer.word for answer in answers], tokenizer)
        self._values = np.array([answer.value for answer in answers], np.float64)

    def read(self, fields: Mapping[str, str]) -> NDArray[np.int32]:
        """The tokens that the model sees of a response."""
        return self._reader.tokens(fields)

    def fits(self, longest: int, num_tokens: int) -> bool:
        """Whether a pass fits the model and the memory budget."""
        if longest > self.model.max_length:
            return False
        span = self._span(longest, num_tokens)
        return self._budget is None or self._budget.resident_layers(span, num_tokens) is not None

    def _span(self, longest: int, num_tokens: int) -> int:
        """Most tokens that are computed together in such a pass."""
        return longest_pack(longest, num_tokens, is_packed=self.model.decoder.is_packed)

    def score(self, texts: Sequence[NDArray[np.int32]]) -> list[JudgeScore]:
        """Scores of texts that ``read`` made, in one pass. They fit together."""
        return self._run([len(tokens) for tokens in texts], lambda: self._score(texts))

    def logprobs(self, questions: Sequence[Question]) -> list[NDArray[np.float32]]:
        """P x K log-probs of each question, in one pass. They fit together."""
        return self._run([len(question.tokens_L) for question in questions], lambda: self.model.logprobs(questions))

    def _score(self, texts: Sequence[NDArray[np.int32]]) -> list[JudgeScore]:
        if not len(self._words):
            return [JudgeScore(score=score) for score in self.model.rewards(texts)]
        asked = [Question.about_the_end(tokens, self._words) for tokens in texts]
        return [self._weigh(found[0]) for found in self.model.logprobs(asked)]

    def _weigh(self, logprobs_K: NDArray[np.float32]) -> JudgeScore:
        probabilities_K = np.exp(logprobs_K.astype(np.float64))
        mass = probabilities_K.sum()
        shares_K = np.exp(logprobs_K.astype(np.float64) - logprobs_K.max())
        return JudgeScore(score=float(shares_K @ self._values / shares_K.sum()), answer_mass=float(mass))

    def _run(self, lengths: Sequence[int], work: Callable[[], Result]) -> Result:
        """Do the work of a pass with as many resident layers as fit; with none, if memory is short all the same."""
        offload = self.model.offload
        num_resident = offload.num_resident
        if self._budget is not None:
            found = self._budget.resident_layers(self._span(max(lengths), sum(lengths)), sum(lengths))
            assert found is not None, "a pass that does not fit was not refused"
            num_resident = found
        try:
            offload.keep(num_resident)
            return work()
        except torch.OutOfMemoryError:
            if num_resident == 0:
                raise
        # Outside of the handler: the error holds what the work had allocated.
        offload.keep(0)
        torch.cuda.empty_cache()
        return work()
