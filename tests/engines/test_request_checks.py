"""What every engine with a model refuses, sentence by sentence."""

from __future__ import annotations

import re

import numpy as np
import pytest

from engines.rollouts import make_request
from tailrace.engines.contract import Request
from tailrace.engines.request_checks import RequestLimits, refuse_while_live

LIMITS = RequestLimits(max_length=30, vocab_size=32, finds_stop_strings=False)
PROMPT = np.array([1, 2, 3], np.int32)
GOOD = make_request(0, prompt=PROMPT, budget=27)
NAME = "train:0:1:0:0"


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


def test_requests_up_to_every_limit_are_accepted() -> None:
    forced = make_request(1, prompt=tokens(0, 31), prefix=[31], budget=28, forced_length=28)
    LIMITS.check([GOOD, forced], live=[make_request(2).response_id])
    can_decode = RequestLimits(max_length=30, vocab_size=32, finds_stop_strings=True)
    can_decode.check([make_request(1, stop_strings=("x",))], live=())


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (make_request(1, prompt=tokens()), f"{NAME} has an empty prompt"),
        (make_request(1, prompt=PROMPT, budget=28), f"{NAME}: prompt and budget are 31 tokens, max_length is 30"),
        (
            make_request(1, prompt=PROMPT, prefix=[1] * 28, budget=1),
            f"{NAME}: prompt and budget are 31 tokens, max_length is 30",
        ),
        (make_request(1, forced_length=21), f"{NAME}: forced_length 21 exceeds the budget 20"),
        (make_request(1, prompt=tokens(32)), f"{NAME} has a token outside the vocabulary of 32"),
        (make_request(1, prompt=tokens(-1)), f"{NAME} has a token outside the vocabulary of 32"),
        (make_request(1, prompt=PROMPT, prefix=[32]), f"{NAME} has a token outside the vocabulary of 32"),
        (
            make_request(1, prompt=PROMPT, stop_strings=("x",)),
            f"{NAME} has stop strings, but the engine was built without decode_text",
        ),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(bad: Request, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        LIMITS.check([GOOD, bad], live=())


def test_a_response_is_live_once() -> None:
    with pytest.raises(ValueError, match=r"^train:0:0:0:0 is already live$"):
        LIMITS.check([GOOD], live=[GOOD.response_id])
    with pytest.raises(ValueError, match=r"^a response was submitted twice in one call$"):
        LIMITS.check([GOOD, GOOD], live=())


def test_some_changes_are_refused_while_requests_are_live() -> None:
    refuse_while_live("release memory", live=())
    with pytest.raises(RuntimeError, match=r"^cannot release memory: 2 requests are live, the first train:0:0:0:0$"):
        refuse_while_live("release memory", [GOOD.response_id, make_request(1).response_id])
