"""What a mistake looks like: one sentence that says what to do, exit status 2, and nothing left behind.

The sentences are part of the interface, so they stand here word for word; `{tmp}` is the test's directory. Who changes
one on purpose copies the new text from the failure into the table.
"""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import tailrace
from end_to_end.rights import held_to_permissions
from tailrace.cli.main import main
from tailrace.config.load import SettingsError, load
from tailrace.core.journal import FORMAT
from tailrace.data.models import resolve_model
from tailrace.devices.releasable_memory import StorageMemory
from tailrace.engines.native.architecture import parse_architecture, weight_shapes
from tailrace.engines.native.layout import engine_layout
from tailrace.engines.native.parameters import allocate, list_destinations
from tailrace.runtime.record.run_directory import RunDirectory

Arrange = Callable[[Path], list[str]]
"""Prepares a directory and returns the arguments that go with it."""


def flags(*arguments: str) -> Arrange:
    return lambda tmp: [part.format(tmp=tmp) for part in arguments]


def prompts(*rows: dict[str, object], more: tuple[str, ...] = ()) -> Arrange:
    def arrange(tmp: Path) -> list[str]:
        (tmp / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return ["--data.train", f"{tmp}/prompts.jsonl", *more]

    return arrange


def model(harm: Callable[[Path], object]) -> Arrange:
    """A copy of the built-in model, harmed."""

    def arrange(tmp: Path) -> list[str]:
        shutil.copytree(resolve_model("tiny-arith"), tmp / "model")
        harm(tmp / "model")
        return ["--model.path", f"{tmp}/model"]

    return arrange


def reward(code: str, name: str = "score") -> Arrange:
    def arrange(tmp: Path) -> list[str]:
        (tmp / "rewards.py").write_text(code)
        return ["--reward.functions", f"[{tmp}/rewards.py:{name}]"]

    return arrange


def recipe(name: str, content: bytes) -> Arrange:
    def arrange(tmp: Path) -> list[str]:
        (tmp / name).write_bytes(content)
        return [f"{tmp}/{name}"]

    return arrange


def cut(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1_000_000])


def edit_header(folder: Path) -> None:
    """Another shape than the bytes that are there."""
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header["model.norm.weight"]["shape"] = [7]
    text = json.dumps(header).encode()
    weights.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def lose_a_tensor(folder: Path) -> None:
    """One tensor less, and otherwise a sound file."""
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")


def lose_a_shard(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def change_config(**values: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text()) | values
        (folder / "config.json").write_text(json.dumps({key: v for key, v in config.items() if v is not None}))

    return change


def other_run(tmp: Path) -> list[str]:
    settings = load("quickstart", {"output_dir": str(tmp / "run"), "seed": "7"})
    directory = RunDirectory.open(settings)
    directory.begin(settings, {})
    directory.journal.write_text(f'{{"format":{FORMAT}}}\n')
    directory.close()
    return []


def under_a_file(tmp: Path) -> list[str]:
    (tmp / "file").write_text("")
    return ["--output_dir", f"{tmp}/file/run"]


CASES: dict[str, tuple[Arrange, str]] = {
    "unknown setting": (
        flags("--rollout.temprature", "1"),
        "unknown setting --rollout.temprature; did you mean --rollout.temperature?",
    ),
    "wrong type": (
        flags("--schedule.max_steps", "many"),
        "schedule.max_steps: input should be a valid integer, unable to parse string as an integer, got 'many'",
    ),
    "several mistakes": (
        flags("--seed", "x", "--rollout.temperature", "-1"),
        "rollout.temperature: input should be greater than or equal to 0, got -1\nseed: input should be a "
        "valid integer, unable to parse string as an integer, got 'x'",
    ),
    "group of one": (
        flags("--rollout.n_samples_per_prompt", "1"),
        "rollout.n_samples_per_prompt is 1: grpo compares the responses of a group, so it needs at least 2",
    ),
    "response cap below 1": (
        flags("--rollout.max_response_length", "0"),
        "rollout.max_response_length: input should be greater than 0, got 0",
    ),
    "recipe that is not there": (
        flags("{tmp}/nowhere.toml"),
        "cannot read the recipe {tmp}/nowhere.toml: No such file or directory; check the path",
    ),
    "recipe that is a directory": (flags("{tmp}"), "cannot read the recipe {tmp}: Is a directory; check the path"),
    "unknown built-in recipe": (
        flags("quickstrat"),
        "no recipe 'quickstrat': neither a file nor a built-in recipe"
        " (code-cpu, long-tail, quickstart, quickstart-cispo, quickstart-dapo, quickstart-gspo, quickstart-ppo,"
        " qwen-64gpu, qwen-8gpu, qwen-gpu, rollpacker-cpu, rollpacker-gpu, smollm2-cpu-smoke, smollm2-gpu)",
    ),
    "malformed TOML": (
        recipe("bad.toml", b"seed = \n"),
        "cannot parse the recipe {tmp}/bad.toml: Invalid value (at line 1, column 8); correct it there",
    ),
    "malformed YAML": (
        recipe("bad.yaml", b"seed: [1, 2\nmodel: {}\n"),
        "cannot parse the recipe {tmp}/bad.yaml: expected ',' or ']', but got ':' (at line 2, column 6); "
        "correct it there",
    ),
    "recipe in another encoding": (
        recipe("bad.toml", b"# \xff\n"),
        "cannot parse the recipe {tmp}/bad.toml: 'utf-8' codec can't decode byte 0xff in position 2: invalid "
        "start byte; correct it there",
    ),
    "recipe that is a list": (
        recipe("bad.yaml", b"- seed\n"),
        "the recipe {tmp}/bad.yaml must be a table of settings, not list",
    ),
    "model directory that is not there": (
        flags("--model.path", "{tmp}/model"),
        "model '{tmp}/model': there is no such directory; model.path is a directory with a model's files, a "
        "Hugging Face id, or one of tiny-arith, smollm2-135m",
    ),
    "model directory without a model": (
        flags("--model.path", "{tmp}"),
        "model '{tmp}': {tmp} has no config.json; model.path is the directory that holds a model's files",
    ),
    "weights cut off": (
        model(cut),
        "the weights of model '{tmp}/model' cannot be used: model.safetensors has 1,000,000 bytes, its "
        "header promises 1,982,456; fetch them again",
    ),
    "weights overwritten": (
        model(lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 64)),
        "the weights of model '{tmp}/model' cannot be used: model.safetensors has a damaged header: it does "
        "not begin like a safetensors file; fetch them again",
    ),
    "weights that contradict themselves": (
        model(edit_header),
        "the weights of model '{tmp}/model' cannot be used: model.safetensors has a damaged header: "
        "model.norm.weight does not fit its place; fetch them again",
    ),
    "no weights": (
        model(lambda folder: (folder / "model.safetensors").unlink()),
        "the weights of model '{tmp}/model' cannot be used: it has neither model.safetensors nor "
        "model.safetensors.index.json; fetch them again",
    ),
    "a tensor is missing": (
        model(lose_a_tensor),
        "the weights of model '{tmp}/model' cannot be used: they lack model.layers.1.mlp.up_proj.weight, which a "
        "model of this config.json needs; fetch them again",
    ),
    "a head of its own is missing": (
        model(change_config(tie_word_embeddings=False)),
        "the weights of model '{tmp}/model' cannot be used: they lack lm_head.weight, which a model of this "
        "config.json needs; fetch them again",
    ),
    "a shard is missing": (
        model(lose_a_shard),
        "the weights of model '{tmp}/model' cannot be used: model-00001-of-00002.safetensors is missing, "
        "which model.safetensors.index.json names; fetch them again",
    ),
    "index that is no index": (
        model(lambda folder: (folder / "model.safetensors.index.json").write_text("[]")),
        "the weights of model '{tmp}/model' cannot be used: model.safetensors.index.json does not say which "
        "file holds which tensor; fetch them again",
    ),
    "unsupported architecture": (
        model(change_config(architectures=["MambaForCausalLM"])),
        "the native engine does not support MambaForCausalLM; choose a model of LlamaForCausalLM, "
        "Qwen2ForCausalLM, Qwen3ForCausalLM; other engines: rollout.engine = 'vllm', rollout.from_run, which takes the"
        " responses of a saved run",
    ),
    "unsupported rope": (
        model(change_config(rope_parameters={"rope_type": "longrope"})),
        "the native engine does not support the rope variant 'longrope'; it supports default, linear, dynamic, llama3, "
        "yarn; other engines: rollout.engine = 'vllm', rollout.from_run, which takes the responses of a saved run",
    ),
    "configuration lacks a number": (
        model(change_config(hidden_size=None)),
        "{tmp}/model/config.json is not a model's configuration (it lacks 'hidden_size'); fetch the model again",
    ),
    "configuration that is no JSON": (
        model(lambda folder: (folder / "config.json").write_text("{")),
        "{tmp}/model/config.json is not a model's configuration (Expecting property name enclosed in double "
        "quotes: line 1 column 2 (char 1)); fetch the model again",
    ),
    "damaged tokenizer": (
        model(lambda folder: (folder / "tokenizer.json").write_text("{")),
        "the tokenizer of {tmp}/model cannot be loaded (Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)); put the tokenizer's own files there",
    ),
    "chat without a template": (
        prompts({"prompt": [{"role": "user", "content": "1+1="}]}),
        "{tmp}/prompts.jsonl, line 1: the prompt needs a chat template, and the model's tokenizer has none; "
        "write prompts as text",
    ),
    "no prompt file": (
        flags("--data.train", "{tmp}/nowhere.jsonl"),
        "there is no prompt file '{tmp}/nowhere.jsonl'; correct the path",
    ),
    "empty data": (prompts(), "{tmp}/prompts.jsonl holds no prompts; give a file with at least one row"),
    "no prompt column": (
        prompts({"text": "1+1=", "gold": "2"}),
        "{tmp}/prompts.jsonl has no prompt column; it has text, gold; name the right one with data.prompt_column",
    ),
    "row that is no object": (
        prompts({"prompt": "1+1="}, [1]),
        "{tmp}/prompts.jsonl, line 2: expected a JSON object, got list",
    ),  # type: ignore[arg-type]
    "prompts all too long": (
        prompts({"prompt": "1+1=" * 50}, more=("--data.max_prompt_length", "8")),
        "{tmp}/prompts.jsonl: all 1 prompts are longer than data.max_prompt_length = 8 tokens; raise it",
    ),
    "reward file that is not there": (
        flags("--reward.functions", "[{tmp}/nowhere.py:score]"),
        "reward function '{tmp}/nowhere.py:score': there is no file {tmp}/nowhere.py; correct the path",
    ),
    "reward that does not import": (
        reward("import no_such_package\n"),
        "reward function '{tmp}/rewards.py:score': importing it raised ModuleNotFoundError: No module named "
        "'no_such_package'; repair {tmp}/rewards.py or what it needs",
    ),
    "reward file without the function": (
        reward("def scroe(response): return 1.0\n"),
        "reward function '{tmp}/rewards.py:score': 'score' does not exist; {tmp}/rewards.py has scroe",
    ),
    "reward with an unknown parameter": (
        reward("def score(response, flavour): return 1.0\n"),
        "reward function '{tmp}/rewards.py:score' wants 'flavour', which is neither given nor a column of "
        "every prompt; rename it to one of response, completion, solution_str, completions, prompt, "
        "data_source, extra_info, prompt_ids, completion_ids, answer, ground_truth, label, solution, "
        "reference, terms, or give it a default",
    ),
    "unknown logger": (
        flags("--logger", "[mlflow]"),
        "logger.0: input should be 'tensorboard', 'wandb', 'wandb-offline' or 'trackio', got 'mlflow'",
    ),
    "directory of another run": (
        other_run,
        "{tmp}/run holds a run with other settings (seed); choose another output_dir, or remove that one",
    ),
    "output directory under a file": (
        under_a_file,
        "cannot use output_dir {tmp}/file/run: Not a directory; choose another output_dir",
    ),
    "no device": (
        flags("--model.device", "warp"),
        "model.device: 'warp' is not a device; write auto, cpu or cuda:N",
    ),
}


def snapshot(folder: Path) -> dict[Path, object]:
    """Everything below, with contents and times."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else sorted(path.iterdir()))
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts  # Python's own, beside a reward file
    }


def command(tmp: Path, arguments: list[str]) -> list[str]:
    names_recipe = bool(arguments) and not arguments[0].startswith("--")
    words = arguments if names_recipe else ["quickstart", *arguments]
    return ["train", *words[:1], "--output_dir", str(tmp / "run"), *words[1:]]


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_a_sentence_and_leaves_nothing_behind(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrange, sentence = CASES[case]
    arguments = command(tmp_path, arrange(tmp_path))
    before = snapshot(tmp_path)
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.replace(str(tmp_path), "{tmp}") == f"tailrace: {sentence}\n"
    assert snapshot(tmp_path) == before


def test_a_missing_package_of_a_logger_is_named_with_its_extra(tmp_path: Path) -> None:
    arguments = command(tmp_path, ["--logger", "[trackio]"])
    # An interpreter in which the package cannot be imported, whether it is installed or not.
    script = (
        f"import sys; sys.modules['trackio'] = None; from tailrace.cli.main import main; sys.exit(main({arguments}))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.stderr == "tailrace: logger 'trackio' needs the package trackio: pip install 'tailrace[trackio]'\n"
    assert result.returncode == 2
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ("secret.toml", "cannot read the recipe {tmp}/secret.toml: Permission denied; check the path"),
        ("open.toml", "cannot use output_dir {tmp}/run: Permission denied; choose another output_dir"),
    ],
)
def test_what_may_not_be_read_or_written_is_a_sentence(
    recipe: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The installation may belong to another user, so what the command needs of it is loaded before.
    import tailrace.commands.train  # noqa: F401

    (tmp_path / "open.toml").write_text("")
    (tmp_path / "secret.toml").write_text("")
    (tmp_path / "secret.toml").chmod(0)
    main(["train", str(tmp_path / "open.toml"), "--dry-run"])
    capsys.readouterr()
    tmp_path.chmod(0o500)
    with held_to_permissions():
        status = main(["train", str(tmp_path / recipe), "--output_dir", str(tmp_path / "run")])
    assert status == 2
    assert capsys.readouterr().err.replace(str(tmp_path), "{tmp}") == f"tailrace: {sentence}\n"
    assert not (tmp_path / "run").exists()


def test_from_python_a_mistake_is_the_same_sentence_and_leaves_nothing_either(tmp_path: Path) -> None:
    def reward(response: str, flavour: str) -> float:
        return float(response == flavour)

    rows = [{"prompt": "1+1=", "answer": "2"}] * 8
    with pytest.raises(SettingsError, match="wants 'flavour', which is neither given nor a column of every prompt"):
        tailrace.train(prompts=rows, reward=reward, output_dir=tmp_path / "run", recipe="quickstart")
    with pytest.raises(SettingsError, match=r"holds no prompts; give a file"):
        tailrace.train(prompts=[], reward=reward, output_dir=tmp_path / "run", recipe="quickstart")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"prompts": [{"prompt": "1+1=", "day": date(2024, 1, 1)}]},
            "prompts[0] cannot be written as JSON (Object of type date is not JSON serializable); give strings, "
            "numbers, lists and dicts",
        ),
        (
            {"prompts": ["1+1=", 2]},
            "prompts[1] is of type int; give a list of strings, or of rows like {'prompt': '17+8=', 'answer': '25'}",
        ),
        (
            {"prompts": {"prompt": ["1+1="]}},
            "prompts[0] is of type str; give a list of strings, or of rows like {'prompt': '17+8=', 'answer': '25'}",
        ),
        ({"threads": 1}, "threads is ambiguous: write one of rollout.threads, trainer.threads"),
    ],
)
def test_objects_that_cannot_be_used_are_a_sentence(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        tailrace.train(output_dir=tmp_path / "run", recipe="quickstart", **changes)
    assert str(caught.value) == sentence
    assert list(tmp_path.iterdir()) == []


def test_a_reward_that_cannot_be_sent_is_a_sentence(tmp_path: Path) -> None:
    lock = threading.Lock()

    def locked(response: str) -> float:
        with lock:
            return float(response == "2")

    with pytest.raises(SettingsError) as caught:
        tailrace.train(reward=locked, output_dir=tmp_path / "run", recipe="quickstart")
    assert str(caught.value) == (
        "reward function 'locked' cannot be sent to the reward processes (cannot pickle '_thread.lock' object); make "
        "what it holds (a lock, a connection, a file) inside the function, or put it into a file and give "
        "reward='path/to/file.py:function'"
    )
    assert list(tmp_path.iterdir()) == []


def test_prompts_may_be_a_list_of_strings(tmp_path: Path) -> None:
    # The last check before a run begins is about the reward: the prompts are read and sound.
    def reward(response: str, flavour: str) -> float:
        return float(response == flavour)

    with pytest.raises(SettingsError, match="wants 'flavour'"):
        tailrace.train(prompts=["1+1=", "2+2="], reward=reward, output_dir=tmp_path / "run", recipe="quickstart")


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("has_biases", [True, False])
def test_the_weights_that_are_looked_for_are_those_the_engine_fills(
    family: str, has_biases: bool, is_tied: bool
) -> None:
    sizes = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "head_dim": 4}
    switches = {"tie_word_embeddings": is_tied, "attention_bias": has_biases, "mlp_bias": has_biases}
    shape = parse_architecture({"model_type": family, "num_attention_heads": 2} | sizes | switches)
    parameters = allocate(shape, StorageMemory(torch.device("cpu")), dtype=torch.float32)
    layout = engine_layout(shape, "float32")
    assert sorted(weight_shapes(shape)) == sorted(piece.parameter for piece in layout.pieces)
    found = list_destinations(parameters, shape)
    assert {name: tuple(found[name].views[0].shape) for name in found} == dict(layout.tensors)
