"""Models and prompts of the rollout benchmark: the same checkpoint directory and token ids for every system."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tailrace.data.gym_tasks import read_tasks
from tailrace.data.packaged_models import unpack

GYM_TASKS = (
    "chain_sum", "basic_arithmetic", "leg_counting", "gsm_symbolic", "simple_equations", "letter_counting",
    "number_sorting", "word_sorting",
)  # fmt: skip

QUESTIONS = (
    "What is the capital of France?",
    "Name three primary colours.",
    "What is 12 + 30?",
    "Write one sentence about the sea.",
    "Which planet is closest to the sun?",
    "Give me a synonym for 'happy'.",
    "How many days are there in a leap year?",
    "What do bees make?",
    "Translate 'good morning' into Spanish.",
    "Who wrote Romeo and Juliet?",
    "What is the opposite of cold?",
    "List two mammals that live in the ocean.",
    "What gas do plants take in?",
    "Finish the sentence: The early bird",
    "What is the square root of 81?",
    "Say hello in French.",
    "What colour do you get when you mix blue and yellow?",
    "How many legs does a spider have?",
    "What is the largest animal on Earth?",
    "Name a country in South America.",
    "What is water made of?",
    "Is the moon a star? Answer yes or no.",
    "What is the boiling point of water in Celsius?",
    "Give an example of a palindrome.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    name: str
    checkpoint: Path
    prompts: list[list[int]]
    """Token ids, one entry per prompt."""
    group_size: int
    max_new_tokens: int
    end_tokens: tuple[int, ...]
    pad_token: int


def load_workload(model: str, *, num_prompts: int, group_size: int, max_new_tokens: int) -> Workload:
    """``model`` is ``tiny-arith``, ``smollm2`` or the directory of a checkpoint with a tokenizer."""
    checkpoint = find_checkpoint(model)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    texts = _arithmetic() if model == "tiny-arith" else [as_chat(tokenizer, question) for question in QUESTIONS]
    prompts = [tokenizer(texts[index % len(texts)])["input_ids"] for index in range(num_prompts)]
    end = tokenizer.eos_token_id
    return Workload(
        name=model,
        checkpoint=checkpoint,
        prompts=prompts,
        group_size=group_size,
        max_new_tokens=max_new_tokens,
        end_tokens=(end,),
        pad_token=end if tokenizer.pad_token_id is None else tokenizer.pad_token_id,
    )


def gym_prompts(checkpoint: Path, number: int) -> tuple[list[list[int]], int]:
    """As many prompts of each reasoning-gym task, as token ids; and the token that ends a response."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    each = -(-number // len(GYM_TASKS))
    rows = [row for task in GYM_TASKS for row in read_tasks(f"{task}?size={each}&seed=0")]
    texts = [as_chat(tokenizer, row["prompt"]) for row in rows[:number]]
    return [tokenizer(text)["input_ids"] for text in texts], tokenizer.eos_token_id


def find_checkpoint(model: str) -> Path:
    if model == "tiny-arith":
        return Path(str(resources.files("tailrace") / "assets" / "tiny-arith"))
    if model == "smollm2":
        return unpack("smollm2-135m")
    return Path(model)


def _arithmetic() -> list[str]:
    path = resources.files("tailrace") / "assets" / "prompts" / "arith-train.jsonl"
    return [json.loads(line)["prompt"] for line in path.read_text(encoding="utf-8").splitlines()]


def as_chat(tokenizer: PreTrainedTokenizerBase, question: str) -> str:
    if not tokenizer.chat_template:
        return question
    messages = [{"role": "user", "content": question}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
