from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM, Qwen2ForCausalLM

from judge.judge_models import SIZES, random_model, random_tokens, reward_model
from tailrace.judge import readings, token_tiles
from tailrace.judge.model import JudgeModel, load_judge_model
from tailrace.judge.passes import packs
from tailrace.judge.questions import Question
from tailrace.sizing.resident_layers import longest_pack

CPU = torch.device("cpu")
LENGTHS = (7, 1, 30, 12, 30)
WORDS = np.array([5, 60, 5], np.int32)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def questions() -> list[Question]:
    texts = [random_tokens(length, seed=number) for number, length in enumerate(LENGTHS)]
    asked = [Question.about_the_end(tokens, WORDS) for tokens in texts]
    return [*asked, *(Question.about_each_token(tokens, start=1) for tokens in texts if len(tokens) > 1)]


def expected(model: torch.nn.Module, question: Question) -> NDArray[np.float32]:
    """What Transformers says."""
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(question.tokens_L).long()[None], use_cache=False).logits[0]
    found = logits.float().log_softmax(dim=-1).numpy()
    return np.take_along_axis(found[question.positions_P], question.candidates_PK.astype(np.int64), axis=1)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_logprobs_are_those_of_transformers(kind: str) -> None:
    found = JudgeModel(random_model(kind), CPU).logprobs(questions())
    for question, logprobs in zip(questions(), found, strict=True):
        assert logprobs.shape == question.candidates_PK.shape
        np.testing.assert_allclose(logprobs, expected(random_model(kind), question), atol=1e-4)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_answers_have_the_same_bits_with_all_half_and_no_layers_resident(kind: str, dtype: torch.dtype) -> None:
    every, half, none = (
        JudgeModel(random_model(kind, dtype), CPU, num_resident=number).logprobs(questions()) for number in (6, 3, 0)
    )
    for one, other, third in zip(every, half, none, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(one, third)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_answer_does_not_depend_on_the_other_questions_of_the_pass(dtype: torch.dtype) -> None:
    model = JudgeModel(random_model("qwen2", dtype), CPU, num_resident=2)
    together = model.logprobs(questions())
    backwards = model.logprobs(questions()[::-1])[::-1]
    for question, one, other in zip(questions(), together, backwards, strict=True):
        [alone] = model.logprobs([question])
        np.testing.assert_array_equal(one, alone)
        np.testing.assert_array_equal(other, alone)


def test_only_what_stands_before_a_position_counts() -> None:
    model = JudgeModel(random_model(), CPU)
    tokens = random_tokens(20)
    changed = np.concatenate([tokens[:11], tokens[11:][::-1]])
    found = [
        model.logprobs([Question(tokens_L=each, positions_P=np.array([3, 10]), candidates_PK=np.array([[1], [2]]))])[0]
        for each in (tokens, changed)
    ]
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
    beyond = Question(tokens_L=changed, positions_P=np.array([12]), candidates_PK=np.array([[1]]))
    same = Question(tokens_L=tokens, positions_P=np.array([12]), candidates_PK=np.array([[1]]))
    assert model.logprobs([beyond])[0] != model.logprobs([same])[0]


def test_a_vocabulary_in_parts_gives_the_same_logprobs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = JudgeModel(random_model(), CPU)
    whole = model.logprobs(questions())
    monkeypatch.setattr(readings, "WEIGHTS_PER_PART", 7 * 32)
    monkeypatch.setattr(readings, "LOGITS_PER_PART", 3 * 7)
    for one, other in zip(whole, model.logprobs(questions()), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    every = Question.about_the_end(random_tokens(9), np.arange(64, dtype=np.int32))
    assert np.exp(model.logprobs([every])[0].astype(np.float64)).sum() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_a_long_sequence_in_tiles_gives_the_same_logprobs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    [whole] = JudgeModel(random_model(kind), CPU).logprobs([Question.about_each_token(random_tokens(50), start=1)])
    monkeypatch.setattr(token_tiles, "TILE", 8)
    [tiled] = JudgeModel(random_model(kind), CPU).logprobs([Question.about_each_token(random_tokens(50), start=1)])
    np.testing.assert_allclose(tiled, whole, atol=1e-5)


def test_rewards_are_those_of_transformers_with_any_number_of_resident_layers() -> None:
    texts = [random_tokens(length, seed=number) for number, length in enumerate(LENGTHS)]
    with torch.no_grad():
        plain = [float(reward_model()(input_ids=torch.from_numpy(each).long()[None]).logits) for each in texts]
    found = [JudgeModel(reward_model(), CPU, num_resident=number).rewards(texts) for number in (6, 3, 0)]
    assert found[0] == pytest.approx(plain, abs=1e-5)
    assert found[0] == found[1] == found[2]
    assert [JudgeModel(reward_model(), CPU).rewards([each])[0] for each in texts] == found[0]


def test_tokens_that_the_model_does_not_have_are_refused() -> None:
    model = JudgeModel(random_model(), CPU)
    with pytest.raises(ValueError, match="tokens must be from 0 to 63, got 3 to 64"):
        model.logprobs([Question.about_the_end(np.array([3, 64], np.int32), WORDS)])
    with pytest.raises(ValueError, match="candidates must be from 0 to 63, got -1 to 2"):
        model.logprobs([Question.about_the_end(np.array([3], np.int32), np.array([2, -1], np.int32))])
    with pytest.raises(ValueError, match="tokens must be from 0 to 63"):
        JudgeModel(reward_model(), CPU).rewards([np.array([70], np.int32)])


@pytest.mark.parametrize(
    ("positions", "shape", "complaint"),
    [([4], (1, 2), "from 0 to 3, got"), ([-1], (1, 2), "from 0 to 3"), ([0, 1], (1, 2), "rows"), ([], (0, 2), "needs")],
)
def test_positions_that_cannot_be_are_refused(positions: list[int], shape: tuple[int, int], complaint: str) -> None:
    candidates = np.zeros(shape, np.int32)
    with pytest.raises(ValueError, match=complaint):
        Question(tokens_L=random_tokens(4), positions_P=np.array(positions, np.int64), candidates_PK=candidates)


def test_models_that_do_more_than_we_call_are_refused() -> None:
    sliding = random_model("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=0)
    with pytest.raises(ValueError, match="do not attend to all tokens"):
        JudgeModel(sliding, CPU)
    with pytest.raises(ValueError, match="do not attend to all tokens"):
        JudgeModel(Gemma2ForCausalLM(Gemma2Config(**SIZES)).eval(), CPU)
    scaled = GraniteConfig(**SIZES, embedding_multiplier=3.0)
    with pytest.raises(ValueError, match="GraniteForCausalLM is not built like Llama"):
        JudgeModel(GraniteForCausalLM(scaled).eval(), CPU)
    with pytest.raises(ValueError, match="GraniteForCausalLM changes its logits"):
        JudgeModel(GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=5.0)).eval(), CPU)


def test_a_model_is_read_from_its_files(tmp_path: Path) -> None:
    random_model("qwen2").save_pretrained(tmp_path / "language")
    reward_model().save_pretrained(tmp_path / "reward")
    language = load_judge_model(tmp_path / "language", CPU, dtype=torch.float32, has_reward_head=False, num_resident=2)
    assert language.offload.num_resident == 2
    [found] = language.logprobs(questions()[:1])
    np.testing.assert_allclose(found, expected(random_model("qwen2"), questions()[0]), atol=1e-4)
    reward = load_judge_model(tmp_path / "reward", CPU, dtype=torch.float32, has_reward_head=True)
    assert reward.rewards([random_tokens(5)]) == JudgeModel(reward_model(), CPU).rewards([random_tokens(5)])


def test_a_model_without_a_reward_head_that_gives_one_number_is_refused(tmp_path: Path) -> None:
    random_model("llama").save_pretrained(tmp_path / "language")
    with pytest.raises(ValueError, match=r"holds no weights for score\.weight"):
        load_judge_model(tmp_path / "language", CPU, dtype=torch.float32, has_reward_head=True)
    reward_model(num_labels=3).save_pretrained(tmp_path / "classes")
    with pytest.raises(ValueError, match="must give one number, it gives 3"):
        load_judge_model(tmp_path / "classes", CPU, dtype=torch.float32, has_reward_head=True)


def test_bytes_outside_the_layers_are_those_of_embeddings_heads_and_the_last_norm() -> None:
    untied = random_model("qwen2", tie_word_embeddings=False)
    assert isinstance(untied, Qwen2ForCausalLM)
    assert JudgeModel(untied, CPU).outside_bytes == 4 * (2 * 64 * 32 + 32)
    assert JudgeModel(random_model("qwen2", tie_word_embeddings=True), CPU).outside_bytes == 4 * (64 * 32 + 32)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_sequences_side_by_side_get_the_answers_that_each_has_alone(kind: str) -> None:
    """The kernel for them exists on GPUs only. Here attention takes one after the other, and all else is the same."""
    model = JudgeModel(random_model(kind), CPU, num_resident=2)
    expected_answers = model.logprobs(questions())
    model.decoder.is_packed = True
    found = model.logprobs(questions())
    for one, other in zip(found, expected_answers, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    for number in (6, 0):
        model.offload.keep(number)
        for one, other in zip(model.logprobs(questions()), found, strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_device_without_a_kernel_for_packs_computes_each_sequence_alone() -> None:
    assert not JudgeModel(random_model(), CPU, is_packed=True).decoder.is_packed


def test_packs_are_neighbours_that_fit_together() -> None:
    lengths = [5000, 3000, 192, 1, 9000, 100, 8092]
    assert packs(lengths, is_packed=True) == [range(3), range(3, 4), range(4, 5), range(5, 7)]
    assert packs(lengths, is_packed=False) == [range(number, number + 1) for number in range(7)]
    assert packs([], is_packed=True) == []
    assert longest_pack(9000, 25385, is_packed=True) == 9000
    assert longest_pack(100, 25385, is_packed=True) == 8192
    assert longest_pack(100, 300, is_packed=True) == 300
    assert longest_pack(100, 25385, is_packed=False) == 100
