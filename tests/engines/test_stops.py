"""Stop tokens and stop strings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tailrace.engines.native.stops import StopTable
from tailrace.engines.stop_strings import ends_with_stop, stop_length


def test_every_request_has_its_own_stop_tokens() -> None:
    table = StopTable(10)
    sets = np.array([table.register(tokens) for tokens in ((), (3,), (3, 4), (4, 3))])
    assert sets.tolist() == [0, 1, 2, 2]
    assert table.is_stop(sets, np.array([3, 3, 4, 3], np.int32)).tolist() == [False, True, True, True]
    assert table.is_stop(sets, np.array([4, 4, 5, 5], np.int32)).tolist() == [False, False, False, False]


def test_a_stop_token_outside_the_vocabulary_never_comes() -> None:
    table = StopTable(4)
    assert not table.is_stop(np.array([table.register((99,))]), np.array([0], np.int32)).any()


def decode_syllables(tokens: Sequence[int]) -> str:
    return "".join({0: "", 1: "an", 2: "sw", 3: "er:", 4: " "}.get(token, "x") for token in tokens)


def test_a_string_is_found_across_tokens_and_behind_tokens_without_text() -> None:
    def ends(tokens: list[int]) -> bool:
        return ends_with_stop(np.array(tokens, np.int32), ["answer:", "zzz"], decode_syllables)

    assert ends([5] * 50 + [1, 2, 3])
    assert not ends([5] * 50 + [1, 2])
    assert ends([5] * 9 + [1, 2, *[0] * 40, 3])
    assert ends([1, 2, 3])


def test_the_first_new_token_that_completes_a_string_is_found_with_one_look_if_there_is_none() -> None:
    looks = list[int]()

    def decode(tokens: Sequence[int]) -> str:
        looks.append(len(tokens))
        return decode_syllables(tokens)

    rng = np.random.default_rng(0)
    found = 0
    for _ in range(300):
        response = rng.integers(0, 5, rng.integers(1, 60)).astype(np.int32)
        num_new = int(rng.integers(1, min(8, len(response)) + 1))
        one_by_one = [ends_with_stop(response[:length], ["answer:"], decode) for length in range(1, len(response) + 1)]
        if any(one_by_one[:-num_new]):
            continue  # it would have ended before
        expected = one_by_one.index(True) + 1 if any(one_by_one) else None
        looks.clear()
        assert stop_length(response, num_new, ["answer:"], decode) == expected
        found += expected is not None
        if expected is None and decode_syllables(response[-20:].tolist()).strip():
            assert len(looks) <= 3, "not once per token"
    assert found > 5
