"""What every rollout engine must do, and what it must do if it declares a capability.

A test of a capability has two sides: an engine that declares it behaves as the contract says, and any other engine
refuses with ``Unsupported``. An engine's test file imports these tests and provides three fixtures:

* ``make_engine(**options)`` builds an engine for the ``checkpoint`` (``max_running``, ``max_length``, ``kv_tokens``,
  ``seed``, ``decode_text``, ``deterministic``; all optional). It takes ``tensor_parallel_size`` if the engine declares
  ``max_parallel_size`` above 1 and uses weights, and ``max_adapters`` if it serves adapters;
* ``reference_model`` is the Transformers model of that checkpoint;
* ``weights`` is a mapping from parameter name to tensor with other values for the same model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from engines.rollouts import (
    VOCAB_SIZE,
    finish_all,
    generate,
    largest_gap,
    make_request,
    random_prompt,
    responses,
)
from tailrace.core.ids import Version
from tailrace.core.responses.response import Finish
from tailrace.engines.contract import Engine, Output, Request, Unsupported

MakeEngine = Callable[..., Engine]
EVERY_TOKEN = tuple(range(VOCAB_SIZE))


def decode_letters(tokens: Sequence[int]) -> str:
    return "".join(chr(ord("a") + token) for token in tokens)


def progress(engine: Engine) -> list[Output]:
    """News of unfinished requests, from an engine that has such news."""
    return engine.progress() if engine.capabilities.streams_progress else []


def test_an_engine_declares_only_what_this_suite_tests(make_engine: MakeEngine) -> None:
    assert make_engine().capabilities.name


def test_the_first_output_starts_after_the_prefix_and_the_next_where_the_last_ended(make_engine: MakeEngine) -> None:
    engine = make_engine()
    request = make_request(prefix=[1, 2, 3], budget=15)
    engine.submit([request])
    outputs = []
    for _ in range(100):
        outputs += engine.step()
        outputs += progress(engine)
    assert outputs[0].segment.start == 3
    assert [output.segment.start for output in outputs[1:]] == [output.segment.end for output in outputs[:-1]]
    assert outputs[-1].segment.end == 15
    assert [output.finish for output in outputs] == [None] * (len(outputs) - 1) + [Finish.LENGTH]


def test_progress_drains_and_says_nothing_twice(make_engine: MakeEngine) -> None:
    engine = make_engine()
    if not engine.capabilities.streams_progress:
        with pytest.raises(Unsupported, match=engine.capabilities.name):
            engine.progress()
        return
    engine.submit([make_request(budget=50)])
    while not (first := engine.progress()):
        assert not engine.step()
    assert engine.progress() == []
    [last] = finish_all(engine)
    assert last.segment.start == first[0].segment.end
    assert engine.progress() == []


def test_every_segment_has_as_many_logprobs_and_mask_bits_as_tokens(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.submit([make_request(index, top_p=0.9 if index % 2 else 1.0) for index in range(4)])
    for output in finish_all(engine):
        segment = output.segment
        assert len(segment.tokens) == len(segment.logprobs) == len(segment.mask) == 20
        assert (segment.mask == 1).all()
        assert (segment.behaviour_logprobs is not None) == bool(segment.response_id.group.prompt % 2)


def test_work_may_be_submitted_between_any_two_steps(make_engine: MakeEngine) -> None:
    engine = make_engine()
    requests = [make_request(index, budget=12) for index in range(10)]
    outputs = []
    for request in requests:
        engine.submit([request])
        outputs += engine.step()
    assert {len(response) for response in responses(requests, [*outputs, *finish_all(engine)]).values()} == {12}


def test_the_stop_token_is_kept_and_ends_the_response(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.submit([make_request(index, budget=100, stop_token_ids=(4, 9)) for index in range(8)])
    for output in finish_all(engine):
        tokens = output.segment.tokens.tolist()
        is_stopped = output.finish is Finish.STOP
        assert is_stopped == (tokens[-1] in (4, 9))
        assert not {4, 9} & set(tokens[:-1])
        assert is_stopped or len(tokens) == 100


def test_a_stop_token_at_the_end_of_the_budget_is_a_stop(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.submit([make_request(budget=1, stop_token_ids=EVERY_TOKEN)])
    assert [output.finish for output in finish_all(engine)] == [Finish.STOP]


def test_a_stop_string_may_span_tokens_and_the_token_that_completes_it_is_kept(make_engine: MakeEngine) -> None:
    engine = make_engine(decode_text=decode_letters)
    free = generate(engine, [make_request(budget=60, temperature=0.0)])  # greedy: the second time is like the first
    [response] = free.values()
    text = decode_letters(response.tokens.tolist())
    stop = text[10:13]
    engine.submit([make_request(budget=60, temperature=0.0, stop_strings=("?", stop))])
    [output] = finish_all(engine)
    assert output.finish is Finish.STOP
    assert decode_letters(output.segment.tokens.tolist()) == text[: text.index(stop) + 3]


def test_the_budget_counts_the_prefix(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.submit([make_request(prefix=[5] * 12, budget=20)])
    [output] = finish_all(engine)
    assert (output.segment.start, output.segment.end, output.finish) == (12, 20, Finish.LENGTH)


def test_a_used_up_budget_ends_in_the_next_step_without_tokens(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.submit([make_request(prefix=[5] * 20, budget=20)])
    [output] = engine.step()
    assert (output.segment.start, len(output.segment.tokens), output.finish) == (20, 0, Finish.LENGTH)


def test_a_forced_length_ignores_stops(make_engine: MakeEngine) -> None:
    engine = make_engine()
    requests = [
        make_request(length, budget=60, forced_length=length, stop_token_ids=EVERY_TOKEN) for length in (1, 17, 60)
    ]
    engine.submit(requests)
    outputs = {output.segment.response_id.group.prompt: output for output in finish_all(engine)}
    assert {length: len(output.segment.tokens) for length, output in outputs.items()} == {1: 1, 17: 17, 60: 60}
    assert {length: output.finish for length, output in outputs.items()} == {
        1: Finish.STOP,
        17: Finish.STOP,
        60: Finish.LENGTH,
    }


def test_an_interrupt_returns_tokens_that_follow_those_returned_before(make_engine: MakeEngine) -> None:
    engine, requests = make_engine(), [make_request(index, budget=40) for index in range(3)]
    parts, rest = _interrupted(engine, requests)
    assert [output.finish for output in rest] == [Finish.INTERRUPTED] * 3
    assert engine.stats().num_running == engine.stats().num_waiting == 0
    for request in requests:
        own = [output.segment for output in (*parts, *rest) if output.segment.response_id == request.response_id]
        assert [segment.start for segment in own] == [0, *(segment.end for segment in own[:-1])]
        assert own[-1].end < 40


def test_an_exact_interrupt_loses_no_token(make_engine: MakeEngine) -> None:
    requests = [make_request(index, budget=40) for index in range(3)]
    watched, engine = make_engine(), make_engine()
    if not engine.capabilities.has_exact_interrupt:
        return
    for each in (watched, engine):
        each.submit(requests)
        for _ in range(3):
            each.step()
    ends = {
        output.segment.response_id: output.segment.end for output in engine.interrupt(r.response_id for r in requests)
    }
    assert all(end > 0 for end in ends.values())
    if engine.capabilities.streams_progress:
        seen = {output.segment.response_id: output.segment.end for output in watched.progress()}
        assert seen
        assert all(ends[response] >= end for response, end in seen.items())


def test_resuming_with_keyed_randomness_continues_as_if_nothing_had_happened(make_engine: MakeEngine) -> None:
    requests = [make_request(index, budget=40) for index in range(3)]
    engine = make_engine()
    if not engine.capabilities.has_keyed_randomness:
        return
    whole = generate(make_engine(), requests)
    parts, rest = _interrupted(engine, requests)
    partial = {request.response_id: _tokens_so_far([*parts, *rest], request) for request in requests}
    assert all(0 < len(tokens) < 40 for tokens in partial.values())
    resumed = [
        make_request(request.response_id.group.prompt, prefix=partial[request.response_id], budget=40)
        for request in requests
    ]
    for response_id, response in generate(make_engine(), resumed).items():
        np.testing.assert_array_equal(response.tokens, whole[response_id].tokens)


def _interrupted(engine: Engine, requests: Sequence[Request]) -> tuple[list[Output], list[Output]]:
    """What a few steps return, some of it as progress, and what an interrupt returns then.

    There are at most 15 steps until every request has a token, and one more without asking for progress.
    """
    engine.submit(requests)
    parts: list[Output] = []
    for _ in range(15):
        parts += [*engine.step(), *progress(engine)]
        if len({output.segment.response_id for output in parts}) == len(requests):
            break
    parts += engine.step()
    return parts, engine.interrupt([request.response_id for request in requests])


def _tokens_so_far(outputs: Sequence, request: Request) -> list[int]:
    own = [output.segment for output in outputs if output.segment.response_id == request.response_id]
    return [token for segment in own for token in segment.tokens.tolist()]


def test_an_interrupt_answers_for_waiting_requests_and_is_silent_about_finished_ones(make_engine: MakeEngine) -> None:
    engine = make_engine(max_running=1)
    first, second = make_request(0, budget=3), make_request(1, budget=3)
    engine.submit([first, second])
    finished: list = []
    while not finished:
        finished = engine.step()
    [output] = engine.interrupt([first.response_id, second.response_id])
    assert output.segment.response_id == second.response_id
    assert len(output.segment.tokens) == 0


def test_an_abort_gives_no_answer_and_frees_everything(make_engine: MakeEngine) -> None:
    engine = make_engine(max_running=2)
    requests = [make_request(index) for index in range(4)]
    engine.submit(requests)
    engine.step()
    engine.abort([request.response_id for request in requests])
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_tokens_used) == (0, 0, 0)
    assert engine.step() == progress(engine) == []
    engine.abort([requests[0].response_id])


def test_stats_count_what_runs_and_what_waits(make_engine: MakeEngine) -> None:
    engine = make_engine(max_running=2)
    engine.submit([make_request(index, prompt=random_prompt(index, 5)) for index in range(5)])
    assert (engine.stats().num_running, engine.stats().num_waiting) == (0, 5)
    while engine.stats().num_running < 2:
        engine.step()
    stats = engine.stats()
    assert stats.num_waiting == 3
    assert (stats.kv_tokens_used > 0) == engine.capabilities.has_kv_cache
    assert stats.kv_tokens_used <= stats.kv_tokens_budget


def test_a_live_response_is_not_accepted_again(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.submit([make_request()])
    with pytest.raises(ValueError, match="train:0:0:0:0"):
        engine.submit([make_request(1), make_request()])
    assert engine.stats().num_waiting == 1, "some of the requests were accepted"


def test_with_keyed_randomness_other_requests_do_not_change_what_is_sampled(make_engine: MakeEngine) -> None:
    if not make_engine().capabilities.has_keyed_randomness:
        return
    alone = generate(make_engine(max_running=1), [make_request(2, budget=30)])
    crowd = [make_request(index, member, budget=30) for member in (1, 0) for index in (3, 2, 1)]
    together = generate(make_engine(max_running=4), crowd)
    for response_id, response in alone.items():
        np.testing.assert_array_equal(response.tokens, together[response_id].tokens)


def test_in_deterministic_mode_other_requests_do_not_change_a_bit(make_engine: MakeEngine) -> None:
    capabilities = make_engine().capabilities
    if not capabilities.has_deterministic_mode:
        with pytest.raises(Unsupported, match=capabilities.name):
            make_engine(deterministic=True)
        return
    alone = generate(make_engine(deterministic=True), [make_request(2, budget=30)])
    crowd = [make_request(index, member, budget=30) for member in (1, 0) for index in (3, 2, 1)]
    together = generate(make_engine(deterministic=True), crowd)
    for response_id, response in alone.items():
        np.testing.assert_array_equal(response.tokens, together[response_id].tokens)
        np.testing.assert_array_equal(response.logprobs, together[response_id].logprobs)


def test_members_positions_and_seeds_draw_different_numbers(make_engine: MakeEngine) -> None:
    members = generate(make_engine(), [make_request(0, member, budget=30) for member in range(4)])
    assert len({tuple(response.tokens.tolist()) for response in members.values()}) == 4
    again = generate(make_engine(seed=1), [make_request(0, 0, budget=30)])
    [(response_id, response)] = again.items()
    assert response.tokens.tolist() != members[response_id].tokens.tolist()


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.3])
def test_logprobs_are_those_of_the_model(
    make_engine: MakeEngine, reference_model: PreTrainedModel, temperature: float
) -> None:
    requests = [make_request(index, member, temperature=temperature) for index in range(4) for member in range(2)]
    found = generate(make_engine(max_running=5), requests)
    assert largest_gap(reference_model, requests, found) < 1e-4


def test_truncated_sampling_reports_both_logprobs(make_engine: MakeEngine, reference_model: PreTrainedModel) -> None:
    cuts = [{"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.3}, {"top_k": 5, "top_p": 0.8, "temperature": 1.3}, {}]
    requests = [make_request(index, **cut) for index, cut in enumerate(cuts)]
    found = generate(make_engine(), requests)
    assert largest_gap(reference_model, requests, found) < 1e-4
    for request in requests:
        response = found[request.response_id]
        gain = response.logprobs - response.behaviour_logprobs
        assert (gain > -1e-6).all()
        assert (gain.max() > 0.01) == request.sampling.is_truncated


def test_top_k_one_is_certain_of_what_greedy_takes(make_engine: MakeEngine) -> None:
    engine = make_engine()
    [certain] = generate(engine, [make_request(budget=12, top_k=1)]).values()
    [greedy] = generate(engine, [make_request(budget=12, temperature=0.0)]).values()
    assert certain.tokens.tolist() == greedy.tokens.tolist()
    np.testing.assert_allclose(certain.logprobs, 0.0, atol=1e-6)


def test_greedy_takes_the_likeliest_token_and_reports_its_logprob_at_temperature_one(
    make_engine: MakeEngine, reference_model: PreTrainedModel
) -> None:
    request = make_request(temperature=0.0, top_p=0.5)
    found = generate(make_engine(), [request])
    assert largest_gap(reference_model, [request], found) < 1e-4
    [response] = found.values()
    np.testing.assert_allclose(response.logprobs, response.behaviour_logprobs, atol=1e-6)
    tokens = torch.from_numpy(np.concatenate([request.prompt, response.tokens]).astype(np.int64))
    with torch.no_grad():
        likeliest = reference_model(tokens[None, :-1]).logits[0, len(request.prompt) - 1 :].argmax(-1)
    assert likeliest.tolist() == response.tokens.tolist()


def repeatable(engine: Engine) -> dict[str, float]:
    """Sampling parameters with which a request that is submitted again gets the same tokens."""
    return {} if engine.capabilities.has_keyed_randomness else {"temperature": 0.0}


def parts(engine: Engine, weights: Mapping[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """What a worker gives to ``pull``: for each holding of the engine, its part of each of its parameters."""
    return [
        {
            piece.parameter: weights[piece.parameter][tuple(slice(start, stop) for start, stop in piece.box)]
            for piece in holding.pieces
        }
        for holding in engine.layout()
    ]


def test_pulled_weights_change_the_version_and_where_they_are_used_the_distribution(
    make_engine: MakeEngine, reference_model: PreTrainedModel, weights: Mapping[str, torch.Tensor]
) -> None:
    engine = make_engine()
    assert engine.stats().version == 0
    engine.pull(parts(engine, weights), Version(7))
    request = make_request()
    found = generate(engine, [request])
    assert engine.stats().version == 7
    assert [version for version, _ in found[request.response_id].versions] == [7]
    if engine.capabilities.uses_weights:
        assert largest_gap(reference_model, [request], found) > 0.1


def test_all_pulled_weights_are_used(
    make_engine: MakeEngine, reference_model: PreTrainedModel, weights: Mapping[str, torch.Tensor]
) -> None:
    engine = make_engine()
    if not engine.capabilities.uses_weights:
        return
    requests = [make_request(index, member) for index in range(3) for member in range(2)]
    generate(engine, requests)  # with the weights that the engine began with
    engine.pull(parts(engine, weights), Version(1))
    pulled = copy.deepcopy(reference_model)
    pulled.load_state_dict(dict(weights))
    assert largest_gap(pulled, requests, generate(engine, requests)) < 1e-4


def test_a_pull_needs_just_what_the_layout_names(make_engine: MakeEngine, reference_model: PreTrainedModel) -> None:
    engine = make_engine()
    engine.pull(parts(engine, reference_model.state_dict()), Version(3))
    requests = [make_request(1)]
    assert largest_gap(reference_model, requests, generate(engine, requests)) < 1e-4


def test_an_instance_on_two_devices_computes_the_same_model_and_pulls_only_what_each_holds(
    make_engine: MakeEngine, reference_model: PreTrainedModel, weights: Mapping[str, torch.Tensor]
) -> None:
    able = make_engine().capabilities
    if able.max_parallel_size < 2 or not able.uses_weights:
        return
    engine = make_engine(tensor_parallel_size=2)
    requests = [make_request(index) for index in range(3)]
    assert largest_gap(reference_model, requests, generate(engine, requests)) < 1e-4
    pulled = parts(engine, weights)
    assert len(pulled) == 2
    whole = sum(weights[name].numel() for name in pulled[0])
    assert all(sum(part.numel() for part in own.values()) < 0.75 * whole for own in pulled)
    engine.pull(pulled, Version(1))
    other = copy.deepcopy(reference_model)
    other.load_state_dict(dict(weights))
    assert largest_gap(other, requests, generate(engine, requests)) < 1e-4


def test_a_pull_with_live_requests_is_an_error(make_engine: MakeEngine, weights: Mapping[str, torch.Tensor]) -> None:
    engine = make_engine()
    engine.submit([make_request()])
    with pytest.raises(RuntimeError, match="live"):
        engine.pull(parts(engine, weights), Version(1))
    assert engine.stats().version == 0
    assert [output.segment.version for output in finish_all(engine)] == [0]


def test_requests_of_one_batch_may_name_different_adapters(
    make_engine: MakeEngine, reference_model: PreTrainedModel, tmp_path: Path
) -> None:
    plain = make_request(0)
    if not make_engine().capabilities.serves_adapters:
        with pytest.raises(Unsupported, match="adapter"):
            make_engine().submit([replace(plain, adapter="one")])
        return
    engine: Any = make_engine(max_adapters=2)
    models = {name: adapted_model(reference_model, tmp_path / name, seed) for seed, name in enumerate(("one", "two"))}
    for name in models:
        engine.load_adapter(name, tmp_path / name)
    requests = [plain, *(replace(make_request(0, 1 + member), adapter=name) for member, name in enumerate(models))]
    found = generate(engine, requests)
    for request in requests:
        model = reference_model if request.adapter is None else models[request.adapter]
        assert largest_gap(model, [request], found) < 1e-4
    assert largest_gap(reference_model, requests[1:], found) > 0.01
    with pytest.raises(ValueError, match="three"):
        engine.submit([replace(plain, adapter="three")])


def test_an_adapter_that_is_loaded_again_replaces_the_one_before(
    make_engine: MakeEngine, reference_model: PreTrainedModel, tmp_path: Path
) -> None:
    if not make_engine().capabilities.serves_adapters:
        return
    engine: Any = make_engine(max_adapters=1)
    request = replace(make_request(prompt=random_prompt(0, 100), budget=20), adapter="one")
    for seed in (0, 1):
        model = adapted_model(reference_model, tmp_path / f"{seed}", seed)
        engine.load_adapter("one", tmp_path / f"{seed}")
        assert largest_gap(model, [request], generate(engine, [request])) < 1e-4
    engine.drop_adapter("one")
    with pytest.raises(ValueError, match="one"):
        engine.submit([request])


def adapted_model(model: PreTrainedModel, directory: Path, seed: int) -> PreTrainedModel:
    """The model with a random adapter, which is saved in the directory."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(seed)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    adapted = peft.get_peft_model(copy.deepcopy(model), config).eval()
    adapted.save_pretrained(directory)
    return adapted


def test_a_released_engine_needs_restore_and_weights_before_work(
    make_engine: MakeEngine, reference_model: PreTrainedModel
) -> None:
    engine = make_engine()
    generate(engine, [make_request()])
    if not engine.capabilities.releases_memory:
        for call in (engine.release, engine.restore):
            with pytest.raises(Unsupported, match=engine.capabilities.name):
                call()
        return
    engine.release()
    with pytest.raises(RuntimeError):
        engine.submit([make_request()])
    engine.restore()
    with pytest.raises(RuntimeError):
        engine.submit([make_request()])
    engine.pull(parts(engine, reference_model.state_dict()), Version(3))
    requests = [make_request(1)]
    assert largest_gap(reference_model, requests, generate(engine, requests)) < 1e-4


def test_a_restored_engine_samples_the_same_tokens_again_and_again(
    make_engine: MakeEngine, reference_model: PreTrainedModel, weights: Mapping[str, torch.Tensor]
) -> None:
    engine = make_engine()
    if not engine.capabilities.releases_memory:
        return
    requests = [
        make_request(index, member, budget=20 + 5 * member, **repeatable(engine))
        for index in range(3)
        for member in range(4)
    ]
    before = {name: found.tokens.tolist() for name, found in generate(engine, requests).items()}
    for version in (1, 3, 5):
        engine.release()
        engine.restore()
        engine.pull(parts(engine, weights), Version(version))
        generate(engine, requests)
        engine.release()
        engine.restore()
        engine.pull(parts(engine, reference_model.state_dict()), Version(version + 1))
        again = {name: found.tokens.tolist() for name, found in generate(engine, requests).items()}
        assert again == before


def test_releasing_or_restoring_twice_changes_nothing(
    make_engine: MakeEngine, reference_model: PreTrainedModel
) -> None:
    engine = make_engine()
    if not engine.capabilities.releases_memory:
        return
    before = generate(engine, [make_request(**repeatable(engine))])
    for call in (engine.restore, engine.release, engine.release, engine.restore, engine.restore):
        call()
    engine.pull(parts(engine, reference_model.state_dict()), Version(1))
    after = generate(engine, [make_request(**repeatable(engine))])
    assert [found.tokens.tolist() for found in after.values()] == [found.tokens.tolist() for found in before.values()]


def test_memory_may_be_released_after_an_abort_in_the_middle_of_work(
    make_engine: MakeEngine, reference_model: PreTrainedModel
) -> None:
    engine = make_engine()
    if not engine.capabilities.releases_memory:
        return
    aborted = [make_request(index, budget=100) for index in range(4)]
    engine.submit(aborted)
    for _ in range(3):
        engine.step()
    engine.abort([request.response_id for request in aborted])
    engine.release()
    engine.restore()
    engine.pull(parts(engine, reference_model.state_dict()), Version(1))
    requests = [make_request(9, member) for member in range(4)]
    assert largest_gap(reference_model, requests, generate(engine, requests)) < 1e-4


def test_memory_is_not_released_under_live_requests(make_engine: MakeEngine) -> None:
    engine = make_engine()
    if not engine.capabilities.releases_memory:
        return
    engine.submit([make_request()])
    with pytest.raises(RuntimeError, match="live"):
        engine.release()
