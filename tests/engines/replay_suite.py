"""What happens at the edges of a replay of several tokens. A test module gives ``make_paged`` and ``make_plain``.

An undisturbed run of the plain runner says which tokens are right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from engines.rollouts import finish_all, generate, make_request
from tailrace.core.responses.response import Finish
from tailrace.engines.contract import Output, Request, Sampling
from tailrace.engines.native.engine import NativeEngine
from tailrace.engines.native.runner_choice import STEPS_PER_REPLAY

MakeNative = Callable[..., NativeEngine]
EDGES = [1, 2, STEPS_PER_REPLAY - 1, STEPS_PER_REPLAY, STEPS_PER_REPLAY + 1, 2 * STEPS_PER_REPLAY]


def run_all(engine: NativeEngine, requests: list[Request]) -> dict[object, list[Output]]:
    engine.submit(requests)
    found: dict[object, list[Output]] = {request.response_id: [] for request in requests}
    for output in finish_all(engine):
        found[output.segment.response_id].append(output)
    return found


def tokens_of(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.segment.tokens.tolist()]


@pytest.mark.parametrize("length", EDGES)
def test_a_budget_may_end_anywhere_in_a_replay(make_paged: MakeNative, make_plain: MakeNative, length: int) -> None:
    request = make_request(0, budget=length)
    outputs = run_all(make_paged(), [request])[request.response_id]
    assert outputs[-1].finish is Finish.LENGTH
    assert tokens_of(outputs) == generate(make_plain(), [request])[request.response_id].tokens.tolist()


@pytest.mark.parametrize("length", EDGES)
def test_a_stop_token_may_come_anywhere_in_a_replay(
    make_paged: MakeNative, make_plain: MakeNative, length: int
) -> None:
    """The stop token is one that the response has at this place for the first time."""
    whole = {member: make_request(0, member, budget=40) for member in range(40)}
    responses = generate(make_plain(max_running=40), list(whole.values()))
    for request in whole.values():
        tokens = responses[request.response_id].tokens.tolist()
        if tokens[length - 1] not in tokens[: length - 1]:
            break
    else:
        pytest.fail("no response has a new token at this place")
    stopping = replace(request, sampling=Sampling(stop_token_ids=(tokens[length - 1],)))
    outputs = run_all(make_paged(), [stopping])[request.response_id]
    assert outputs[-1].finish is Finish.STOP
    assert tokens_of(outputs) == tokens[:length]


def test_more_stop_tokens_than_the_device_checks_are_checked_by_the_host(
    make_paged: MakeNative, make_plain: MakeNative
) -> None:
    request = make_request(0, budget=40)
    tokens = generate(make_plain(), [request])[request.response_id].tokens.tolist()
    others = [token for token in range(32) if token not in tokens[:12]][:16]
    stopping = replace(request, sampling=Sampling(stop_token_ids=(*others, tokens[11])))
    outputs = run_all(make_paged(), [stopping])[request.response_id]
    assert tokens_of(outputs) == tokens[: tokens.index(tokens[11]) + 1]
    assert outputs[-1].finish is Finish.STOP


def test_all_rows_may_end_at_once_and_others_take_their_place(make_paged: MakeNative, make_plain: MakeNative) -> None:
    requests = [make_request(index, budget=STEPS_PER_REPLAY) for index in range(12)]
    found = run_all(make_paged(max_running=4), requests)
    expected = generate(make_plain(max_running=4), requests)
    assert {name: tokens_of(outputs) for name, outputs in found.items()} == {
        name: response.tokens.tolist() for name, response in expected.items()
    }


def test_preempted_sequences_continue_as_if_nothing_had_happened(
    make_paged: MakeNative, make_plain: MakeNative
) -> None:
    requests = [make_request(index, member, budget=90) for index in range(3) for member in range(2)]
    engine = make_paged(max_running=6, kv_tokens=240)
    found = run_all(engine, requests)
    assert engine.stats().num_preemptions > 0
    assert engine.stats().kv_tokens_used == 0
    for name, response in generate(make_plain(), requests).items():
        assert tokens_of(found[name]) == response.tokens.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_interrupts_and_aborts_at_any_moment_change_no_token(
    make_paged: MakeNative, make_plain: MakeNative, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    members = [(prompt, member) for prompt in range(4) for member in range(2)]
    made = [make_request(i, m, budget=60, stop_token_ids=(7, 9) if m else ()) for i, m in members]
    requests = {request.response_id: request for request in made}
    engine = make_paged(max_running=5, kv_tokens=400)
    engine.submit(list(requests.values()))
    kept: dict[object, list[int]] = {name: [] for name in requests}
    missing = set(requests)
    while missing:
        for output in engine.step():
            kept[output.segment.response_id] += output.segment.tokens.tolist()
            missing.discard(output.segment.response_id)
        for output in engine.progress() if rng.random() < 0.3 else []:
            kept[output.segment.response_id] += output.segment.tokens.tolist()
        if missing and rng.random() < 0.4:
            chosen = [name for name in sorted(missing, key=str) if rng.random() < 0.5]
            if rng.random() < 0.3:
                engine.abort(chosen)
            else:
                for output in engine.interrupt(chosen):
                    kept[output.segment.response_id] += output.segment.tokens.tolist()
            engine.submit([replace(requests[n], prefix=np.array(kept[n], np.int32)) for n in chosen])
    for name, response in generate(make_plain(), list(requests.values())).items():
        assert kept[name] == response.tokens.tolist()
    assert engine.stats().kv_tokens_used == 0


def test_truncated_and_plain_rows_in_one_batch(make_paged: MakeNative, make_plain: MakeNative) -> None:
    settings = [
        Sampling(),
        Sampling(top_k=4),
        Sampling(top_p=0.7, temperature=0.8),
        Sampling(min_p=0.2),
        Sampling(temperature=0),
    ]
    requests = [replace(make_request(i, budget=20), sampling=each) for i, each in enumerate(settings)]
    found, expected = generate(make_paged(), requests), generate(make_plain(), requests)
    for name, response in expected.items():
        assert found[name].tokens.tolist() == response.tokens.tolist()
        np.testing.assert_allclose(found[name].logprobs, response.logprobs, atol=1e-4)


def test_progress_says_nothing_about_a_request_that_an_interrupt_of_another_found_at_its_end(
    make_paged: MakeNative, make_plain: MakeNative
) -> None:
    ending, other = make_request(0, budget=STEPS_PER_REPLAY + 2), make_request(1, budget=60)
    engine = make_paged()
    engine.submit([ending, other])
    engine.step()
    engine.step()
    engine.interrupt([other.response_id])
    assert engine.progress() == []
    outputs = [output for output in finish_all(engine) if output.segment.response_id == ending.response_id]
    assert [output.finish for output in outputs] == [Finish.LENGTH]
    assert tokens_of(outputs) == generate(make_plain(), [ending])[ending.response_id].tokens.tolist()


def test_an_interrupt_of_requests_that_only_wait_does_not_wait_for_the_replay_that_runs(
    make_paged: MakeNative, make_plain: MakeNative
) -> None:
    running, waiting = make_request(0, budget=60), make_request(1, prefix=[5], budget=60)
    used_up = make_request(2, prefix=[5, 6], budget=2)
    engine = make_paged(max_running=1)
    engine.submit([running, waiting])
    while not (parts := engine.progress()):
        engine.step()
    engine.submit([used_up])
    ended = engine.interrupt([waiting.response_id, used_up.response_id])
    assert [(output.segment.start, len(output.segment.tokens), output.finish) for output in ended] == [
        (1, 0, Finish.INTERRUPTED),
        (2, 0, Finish.INTERRUPTED),
    ]
    assert engine.progress() == [], "the replay was waited for"
    parts += finish_all(engine)
    assert tokens_of(parts) == generate(make_plain(), [running])[running.response_id].tokens.tolist()


@pytest.mark.parametrize("chunk", [7, 16, 33])
def test_prompts_may_be_longer_than_a_chunk_of_prefill(
    make_paged: MakeNative, make_plain: MakeNative, chunk: int
) -> None:
    """Shared prompts among them, and others decode meanwhile."""
    prompts = [np.arange(1, 1 + length, dtype=np.int32) % 30 + 1 for length in (40, 66, 5)]
    requests = [
        replace(make_request(index, member, budget=24), prompt=prompt)
        for index, prompt in enumerate(prompts)
        for member in range(3)
    ]
    expected = generate(make_plain(max_running=9), requests)
    outputs = run_all(make_paged(max_running=9, prefill_chunk=chunk), requests)
    for request in requests:
        assert tokens_of(outputs[request.response_id]) == expected[request.response_id].tokens.tolist()
