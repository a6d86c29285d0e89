"""The arithmetic chains that `tiny-arith` is pre-trained and trained on: prompts, responses, splits.

A prompt is a chain of sums and differences, `17+8-5=`, whose running total stays within 0..99. A response is
*worked*, one step per term, or *terse*, a guess:

    17+8-5=   ->   17+8=25-5=20#### 20      worked: nearly always right, and as long as the chain
    17+8-5=   ->   #### 23                  terse: five tokens, right for two terms at best

Promises:
- The split of a chain (`pretrain`, `train`, `heldout`) is a function of its terms regardless of their order, so no two
  splits share a chain, nor a reordering of one.
- The rows of a prompt file are distinct and depend on nothing but the split's name; a shorter file is a prefix of a
  longer one.
- The number of terms is heavy-tailed (median 3, at most `MAX_TERMS`), and so is the length of worked responses.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Container
from dataclasses import dataclass
from typing import Literal

Split = Literal["pretrain", "train", "heldout"]

MAX_TERMS = 48
MAX_OPERAND = 50
MAX_TOTAL = 99
ANSWER_MARK = "####"

# Of 10 buckets of chains by hash, one is held out, two are for reinforcement learning, the rest for pre-training.
_SPLIT_OF_BUCKET: tuple[Split, ...] = ("heldout", "train", "train", *(["pretrain"] * 7))

_TERM_COUNTS = tuple(range(2, MAX_TERMS + 1))
_TERM_COUNT_WEIGHTS = (0.2, 0.37, 0.15, *(1.0 / (num_terms - 1) ** 2 for num_terms in range(5, MAX_TERMS + 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Signed terms, the first one positive; their sum is the answer."""

    terms: tuple[int, ...]

    @property
    def prompt(self) -> str:
        return str(self.terms[0]) + "".join(f"{term:+d}" for term in self.terms[1:]) + "="

    @property
    def answer(self) -> int:
        return sum(self.terms)

    @property
    def split(self) -> Split:
        canonical = ",".join(str(term) for term in sorted(self.terms))
        bucket = int.from_bytes(hashlib.sha256(canonical.encode()).digest()[:8], "big") % len(_SPLIT_OF_BUCKET)
        return _SPLIT_OF_BUCKET[bucket]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How the responses of pre-training are written."""

    terse_share_short: float
    """Share of terse responses to chains of at most 5 terms."""
    terse_share_long: float
    """Share of terse responses to longer chains."""
    slip_rate: float
    """Share of wrong results among the steps of a worked response."""
    terse_right: tuple[float, float, float] = (0.8, 0.45, 0.2)
    """Share of right guesses among the terse responses to chains of 2, 3 and more terms."""


def sample_chain(
    rng: random.Random,
    split: Split,
    *,
    max_terms: int = MAX_TERMS,
    flat_share: float = 0.0,
    excluded: Container[str] = (),
) -> Chain:
    """A random chain of the given split whose prompt is not excluded.

    The number of terms is heavy-tailed, or uniform for `flat_share` of the chains. It is drawn once and kept, so that
    rejections do not thin out the few short chains.
    """
    counts = _TERM_COUNTS[: max_terms - 1]
    if rng.random() < flat_share:
        num_terms = rng.choice(counts)
    else:
        num_terms = rng.choices(counts, _TERM_COUNT_WEIGHTS[: max_terms - 1])[0]
    while True:
        chain = _sample_terms(rng, num_terms)
        if chain.split == split and chain.prompt not in excluded:
            return chain


def _sample_terms(rng: random.Random, num_terms: int) -> Chain:
    terms = [rng.randint(1, MAX_TOTAL)]
    total = terms[0]
    while len(terms) < num_terms:
        term = rng.randint(1, MAX_OPERAND) * rng.choice((-1, 1))
        if 0 <= total + term <= MAX_TOTAL:
            terms.append(term)
            total += term
    return Chain(terms=tuple(terms))


def worked_response(chain: Chain, rng: random.Random, slip_rate: float) -> str:
    """One step per term; a slip is carried on as if it were right."""
    total = chain.terms[0]
    steps = [str(total)]
    for term in chain.terms[1:]:
        total += term
        if rng.random() < slip_rate:
            total += rng.choice((-10, -1, 1, 10))
        steps.append(f"{term:+d}={total}")
    return "".join(steps) + f"{ANSWER_MARK} {total}"


def terse_response(chain: Chain, rng: random.Random, terse_right: tuple[float, float, float]) -> str:
    """The answer alone, or a number near it."""
    guess = chain.answer
    if rng.random() >= terse_right[min(len(chain.terms), 4) - 2]:
        guess = rng.choice([n for n in range(max(0, guess - 15), min(MAX_TOTAL, guess + 15) + 1) if n != guess])
    return f"{ANSWER_MARK} {guess}"


def sample_response(chain: Chain, rng: random.Random, mix: Mix) -> str:
    """A response in one of the two styles, without the end-of-sequence token."""
    terse_share = mix.terse_share_short if len(chain.terms) <= 5 else mix.terse_share_long
    if rng.random() < terse_share:
        return terse_response(chain, rng, mix.terse_right)
    return worked_response(chain, rng, mix.slip_rate)


def prompt_rows(split: Split, num_rows: int) -> list[dict[str, str | int]]:
    """The rows of a prompt file."""
    rng = random.Random(f"tiny-arith prompts {split}")
    seen: set[str] = set()
    rows: list[dict[str, str | int]] = []
    for _ in range(num_rows):
        chain = sample_chain(rng, split, excluded=seen)
        seen.add(chain.prompt)
        rows.append({"prompt": chain.prompt, "answer": str(chain.answer), "terms": len(chain.terms)})
    return rows


def prompt_file(split: Split, num_rows: int) -> str:
    """The text of a prompt file, jsonl."""
    return "".join(json.dumps(row) + "\n" for row in prompt_rows(split, num_rows))
