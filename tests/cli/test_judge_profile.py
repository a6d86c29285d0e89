"""`tailrace profile --judge` measures a judge, and `reward.judge.profile` reads what it wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import LlamaConfig, LlamaForSequenceClassification

from judge.judge_models import SIZES
from tailrace.cli.main import main
from tailrace.data.models import resolve_model
from tailrace.sizing.offload_profile_file import Measured, read_profile, write_profile
from tailrace.sizing.resident_layers import OffloadProfile

ON_CPU = ("--device", "cpu", "--lengths", "64,16,16")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "judge.json"
    assert main(["profile", "--judge", "tiny-arith", *ON_CPU, "--json", str(path)]) == 0
    return path


def test_memory_and_seconds_are_measured_by_length_and_written(written: Path) -> None:
    found = json.loads(written.read_text())
    assert (found["model"], found["dtype"], found["device"]) == ("tiny-arith", "float32", "cpu")
    profile = read_profile(written, model="tiny-arith", dtype="float32")
    assert [point.length for point in profile.points] == [16, 64]
    assert all(point.layer_s > 0 for point in profile.points)
    assert [point.working_bytes for point in profile.points] == [0, 0], "a CPU does not tell"
    config = json.loads((resolve_model("tiny-arith") / "config.json").read_text())
    assert profile.num_layers == config["num_hidden_layers"]


def test_a_recipe_names_the_judge_and_a_cpu_is_said_to_tell_no_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "--judge", "quickstart", "--reward.judge.model", "tiny-arith", *ON_CPU]) == 0
    said = capsys.readouterr().out
    assert said.startswith("tiny-arith, float32, on cpu\n")
    assert "\n     64            0 " in said
    assert said.endswith("note: memory of a pass is measured on a GPU only; on a CPU it counts as 0\n")


def test_a_judge_with_a_reward_head_is_measured_too(tmp_path: Path) -> None:
    LlamaForSequenceClassification(LlamaConfig(**SIZES, num_labels=1)).save_pretrained(tmp_path / "model")
    out = str(tmp_path / "judge.json")
    given = ["--reward.judge.answers", "{}", "--json", out, *ON_CPU]
    assert main(["profile", "--judge", str(tmp_path / "model"), *given]) == 0
    assert read_profile(Path(out), model=f"{tmp_path}/model/../model").num_layers == SIZES["num_hidden_layers"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["quickstart"], "--judge measures reward.judge.model, and it is not set"),
        (["tiny-arith", "--reward.judge.model", "x"], "tiny-arith and --reward.judge.model both name a model"),
        (["tiny-arith", "--reward.judge.url", "http://127.0.0.1:1/v1"], "the judge is at reward.judge.url http://127"),
        (["tiny-arith", "--lengths", "16,many"], "--lengths must be numbers above 0"),
        (["tiny-arith", "--lengths", "16,0"], "--lengths must be numbers above 0"),
        (["no/such/model/", "--device", "cpu"], "no/such/model"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "--judge", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_lengths_go_with_a_judge(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "tiny-arith", "--lengths", "16"]) == 2
    assert "--lengths goes with --judge" in capsys.readouterr().err


def refused(path: Path, **asked: object) -> str:
    with pytest.raises(ValueError) as error:  # noqa: PT011  the sentence is compared by the caller
        read_profile(path, **asked)  # type: ignore[arg-type]
    return str(error.value).replace(str(path), "FILE")


def test_a_profile_of_another_model_precision_or_kind_of_device_is_refused(written: Path) -> None:
    begin, end = "reward.judge.profile: FILE does not fit this run: ", "; measure again with `tailrace profile --judge`"
    assert refused(written, model="other/judge") == (
        f"{begin}it was measured with the model 'tiny-arith', and the judge is 'other/judge'{end}"
    )
    assert refused(written, model="tiny-arith", dtype="bfloat16") == (
        f"{begin}it was measured in float32, and the judge computes in bfloat16{end}"
    )
    assert refused(written, is_cuda=True) == (
        f"{begin}it was measured on a CPU, where memory of a GPU cannot be measured{end}"
    )


@pytest.mark.parametrize("text", ["", "[]", '{"model": "m", "dtype": "d", "device": "cpu", "profile": {"points": []}}'])
def test_a_file_that_is_no_profile_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "judge.json"
    path.write_text(text)
    assert refused(path).startswith("reward.judge.profile: FILE is not a profile that `tailrace profile --judge` wrote")
    assert refused(tmp_path / "nothing").endswith("FILE cannot be read: No such file or directory")


def test_what_is_written_is_read(written: Path, tmp_path: Path) -> None:
    profile: OffloadProfile = read_profile(written)
    path = tmp_path / "again.json"
    write_profile(path, profile, Measured(model="m", dtype="bfloat16", device="a GPU"))
    assert read_profile(path, model="m", dtype="bfloat16", is_cuda=True) == profile
