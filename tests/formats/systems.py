"""One small data file and one reward function of each system, written the way its users write them.

Every file asks the same two questions, 2 + 3 and 4 * 6; every reward gives 1 for a right answer.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

Row = dict[str, object]
QUESTIONS = (("2 + 3 =", "5"), ("4 * 6 =", "24"))


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    name: str
    row: Callable[[str, str], Row]
    """From question and answer to a row."""
    form: str
    """jsonl, parquet or saved (a directory written by `save_to_disk`)."""
    note: str
    reward: str
    """A name or `package.module:function`, or the code of a file that has one function."""
    response: str = "{}"
    """How the reward expects an answer to be written."""

    def write(self, directory: Path, questions: Iterable[tuple[str, str]] = QUESTIONS) -> str:
        rows = [self.row(*question) for question in questions]
        path = directory / f"{self.name}.{self.form}"
        match self.form:
            case "jsonl":
                path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            case "parquet":
                import pyarrow
                from pyarrow import parquet

                parquet.write_table(pyarrow.Table.from_pylist(rows), path)
            case "saved":
                import datasets

                datasets.Dataset.from_list(rows).save_to_disk(path)
        return str(path)

    def reward_spec(self, directory: Path) -> str:
        if "\n" not in self.reward:
            return self.reward
        code = textwrap.dedent(self.reward)
        path = directory / "reward_of_the_system.py"
        path.write_text(code)
        return f"{path}:{code.partition('def ')[2].partition('(')[0]}"


def chat(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


VERL = System(
    name="verl",
    row=lambda question, answer: {
        "data_source": "openai/gsm8k",
        "prompt": chat(question),
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {"split": "train", "index": 7, "answer": f"it is {answer}"},
    },
    form="parquet",
    note="prompt from 'prompt', answer from 'reward_model.ground_truth' (verl format)",
    reward="""
        def compute_score(data_source, solution_str, ground_truth, extra_info=None):
            assert data_source == "openai/gsm8k" and extra_info["index"] == 7
            return {"score": 1.0 if solution_str == ground_truth else 0.0, "acc": solution_str == ground_truth}
    """,
)
SKYRL = System(
    name="skyrl",
    row=lambda question, answer: {
        "data_source": "openai/gsm8k",
        "prompt": chat(question),
        "env_class": "gsm8k",
        "reward_spec": {"method": "rule", "ground_truth": answer},
        "extra_info": {"split": "train", "index": 0},
    },
    form="parquet",
    note="prompt from 'prompt', answer from 'reward_spec.ground_truth' (SkyRL format)",
    reward="""
        def compute_score(solution_str, ground_truth, method="strict", format_score=0.0, score=1.0):
            return score if solution_str == ground_truth else format_score
    """,
)
SLIME = System(
    name="slime",
    row=lambda question, answer: {"prompt": chat(question), "label": answer, "metadata": {"level": 3}},
    form="jsonl",
    note="prompt from 'prompt', answer from 'label'",
    reward="""
        async def custom_reward(args, sample, **kwargs):
            assert sample.metadata["level"] == 3 and sample.prompt.startswith("<user>")
            assert sample.response_length == len(sample.response) < len(sample.tokens)
            return 1.0 if sample.response == sample.label else 0.0
    """,
)
OPENRLHF = System(
    name="openrlhf",
    row=lambda question, answer: {"input": question, "answer": answer},
    form="jsonl",
    note="prompt from 'input', answer from 'answer'",
    reward="""
        import torch

        def reward_func(queries, prompts, labels, **kwargs):
            answers = [query[len(prompt):] for query, prompt in zip(queries, prompts, strict=True)]
            rewards = torch.tensor([float(given == label) for given, label in zip(answers, labels, strict=True)])
            return {"rewards": rewards, "scores": rewards, "extra_logs": {"num_labels": torch.tensor([len(labels)])}}
    """,
)
TRL = System(
    name="trl",
    row=lambda question, answer: {"prompt": chat(question), "solution": rf"\boxed{{{answer}}}"},
    form="saved",
    note="prompt from 'prompt', answer from 'solution'",
    reward="trl.rewards:accuracy_reward",
    response=r"so it is \boxed{{{}}}",
)
AREAL = System(
    name="areal",
    row=lambda question, answer: {"messages": chat(question), "answer": answer, "question": question},
    form="saved",
    note="prompt from 'messages', answer from 'answer'",
    reward="""
        def gsm8k_reward_fn(prompt, completions, prompt_ids, completion_ids, answer, **kwargs):
            assert prompt == f"<user>{kwargs['question']}<assistant>" and len(prompt_ids) == len(prompt)
            assert len(completion_ids) == len(completions)
            return float(completions == answer)
    """,
)
ROLL = System(
    name="roll",
    row=lambda question, answer: {
        "id": "0",
        "source": "deepmath",
        "difficulty": 1,
        "prompt": question,
        "messages": json.dumps([{"role": "system", "content": "be brief"}, *chat(question)]),
        "ground_truth": answer,
        "case_type": "",
        "test_case_function": "",
        "test_cases": "",
        "tag": "math_rule",
    },
    form="jsonl",
    note="prompt from 'messages', answer from 'ground_truth' (ROLL format)",
    reward="exact_match",
)
NEMO_RL = System(
    name="nemo_rl",
    row=lambda question, answer: {"input": question, "output": answer, "task_name": "math"},
    form="jsonl",
    note="prompt from 'input', answer from 'output'",
    reward="exact_match",
)
PRIME_RL = System(
    name="prime_rl",
    row=lambda question, answer: {"question": question, "answer": answer, "info": {"unit": ""}, "task": "sums"},
    form="parquet",
    note="prompt from 'question', answer from 'answer'",
    reward="""
        async def exact(completion, answer, info, task):
            return float(completion == answer + info["unit"] and task == "sums")
    """,
)
SYSTEMS = (VERL, SKYRL, SLIME, OPENRLHF, TRL, AREAL, ROLL, NEMO_RL, PRIME_RL)
