from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from judge.judge_models import SIZES, random_model, reward_model
from judge.test_template import byte_tokenizer
from tailrace.judge.judge import Judge, MemoryBudget
from tailrace.judge.model import JudgeModel
from tailrace.judge.passes import next_pass
from tailrace.judge.profiling import measure_profile
from tailrace.judge.questions import Question
from tailrace.judge.template import AnswerWord, JudgeTemplate, answer_tokens
from tailrace.sizing.resident_layers import LengthPoint, OffloadProfile

CPU = torch.device("cpu")
TEMPLATE = JudgeTemplate(user="Is {response} the answer to {prompt}?")
FIELDS = [{"prompt": "1+1", "response": response} for response in ("2", "three", "I do not know", "")]
ENOUGH = {"vocab_size": len(byte_tokenizer())}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def judge_of(num_resident: int = 6, **options: Any) -> Judge:
    model = JudgeModel(random_model("qwen2", **ENOUGH), CPU, num_resident=num_resident)
    return Judge(model, TEMPLATE, byte_tokenizer(), **options)


def profile(judge: Judge, *points: LengthPoint) -> OffloadProfile:
    return replace(
        measure_profile(judge.model, (16,)), points=points or (LengthPoint(length=64, working_bytes=0, layer_s=1.0),)
    )


def test_the_score_is_the_probability_of_yes_among_the_answer_words() -> None:
    judge = judge_of()
    yes, no = answer_tokens(["yes", "no"], byte_tokenizer())
    texts = [judge.read(fields) for fields in FIELDS]
    found = judge.score(texts)
    for tokens, score in zip(texts, found, strict=True):
        [[likely]] = judge.model.logprobs([Question.about_the_end(tokens, np.array([yes, no], np.int32))])
        p_yes, p_no = np.exp(likely.astype(np.float64))
        assert score.score == pytest.approx(p_yes / (p_yes + p_no))
        assert score.answer_mass == pytest.approx(p_yes + p_no)
        assert 0 < score.score < 1
    assert len({score.score for score in found}) == len(found)


def test_answer_words_may_have_any_values() -> None:
    answers = (AnswerWord(word="1", value=-2.0), AnswerWord(word="2", value=0.5), AnswerWord(word="3", value=4.0))
    judge = judge_of(answers=answers)
    tokens = judge.read(FIELDS[0])
    [[likely]] = judge.model.logprobs(
        [Question.about_the_end(tokens, answer_tokens(["1", "2", "3"], byte_tokenizer()))]
    )
    shares = np.exp(likely.astype(np.float64)) / np.exp(likely.astype(np.float64)).sum()
    [found] = judge.score([tokens])
    assert found.score == pytest.approx(float(shares @ [-2.0, 0.5, 4.0]))


def test_scores_have_the_same_bits_with_any_number_of_resident_layers_and_in_any_company() -> None:
    texts = [judge_of().read(fields) for fields in FIELDS]
    expected = judge_of().score(texts)
    assert judge_of(3).score(texts) == expected
    assert judge_of(0).score(texts) == expected
    assert [judge_of().score([tokens])[0] for tokens in texts] == expected


def test_a_reward_head_gives_the_score_itself() -> None:
    model = reward_model()
    model.resize_token_embeddings(ENOUGH["vocab_size"])
    judge = Judge(JudgeModel(model, CPU), TEMPLATE, byte_tokenizer(), answers=())
    texts = [judge.read(fields) for fields in FIELDS]
    assert [found.score for found in judge.score(texts)] == judge.model.rewards(texts)
    assert judge.score(texts)[0].answer_mass is None


def test_as_many_layers_are_resident_as_the_budget_allows_for_the_longest_text() -> None:
    judge = judge_of()
    measured = profile(
        judge,
        LengthPoint(length=40, working_bytes=0, layer_s=1.0),
        LengthPoint(length=80, working_bytes=4 * judge.model.offload.layer_bytes, layer_s=1.0),
    )
    everything = measured.device_bytes(6, longest=60, num_tokens=60)
    limited = judge_of(budget=MemoryBudget(num_bytes=everything - 3 * measured.layer_bytes, profile=measured))
    questions = [
        Question.about_the_end(np.arange(length, dtype=np.int32), np.array([1], np.int32)) for length in (40, 60, 70)
    ]
    numbers = []
    for question in questions[:2]:
        assert limited.fits(len(question.tokens_L), len(question.tokens_L))
        limited.logprobs([question])
        numbers.append(limited.model.offload.num_resident)
    assert numbers == [3, 1]
    assert not limited.fits(80, 80)
    assert not judge_of().fits(SIZES["max_position_embeddings"] + 1, 1)


def test_when_memory_is_short_all_the_same_no_layer_is_resident(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = judge_of(3)
    decoder, offload = judge.model.decoder, judge.model.offload
    compute, numbers = decoder.states, []

    def short_of_memory(*arguments: Any) -> Any:
        numbers.append(offload.num_resident)
        if offload.num_resident:
            raise torch.OutOfMemoryError("too little")
        return compute(*arguments)

    monkeypatch.setattr(decoder, "states", short_of_memory)
    texts = [judge.read(fields) for fields in FIELDS]
    assert judge.score(texts) == judge_of().score(texts)
    assert numbers == [3, 0]


def test_a_profile_is_measured_on_any_device_and_leaves_the_layers_where_they_were() -> None:
    judge = judge_of(4)
    found = measure_profile(judge.model, (8, 32, 20_000))
    assert [point.length for point in found.points] == [8, 32]
    assert (found.num_layers, found.layer_bytes) == (6, judge.model.offload.layer_bytes)
    assert found.held_bytes == 4 * (32 + 2 * 8)
    assert all(point.layer_s > 0 for point in found.points)
    assert judge.model.offload.num_resident == 4
    texts = [judge.read(fields) for fields in FIELDS]
    assert judge.score(texts) == judge_of().score(texts)


def test_lengths_beyond_the_budget_are_not_measured() -> None:
    model = judge_of().model
    budget = measure_profile(model, (8,)).device_bytes(0, longest=100, num_tokens=100)
    found = measure_profile(model, (8, 64, 100, 101, 4000), budget_bytes=budget)
    assert [point.length for point in found.points] == [8, 64, 100]


def test_the_next_pass_takes_texts_in_order_as_far_as_they_fit() -> None:
    def fits(longest: int, num_tokens: int) -> bool:
        return 2 * longest + num_tokens <= 100

    assert next_pass([], fits) == 0
    assert next_pass([200, 1], fits) == 1, "one that fits nowhere must be refused before"
    assert next_pass([10, 10, 10], fits) == 3
    assert next_pass([10, 10, 30, 10], fits) == 2
    assert next_pass([10] * 20, fits, max_tokens=35) == 3
