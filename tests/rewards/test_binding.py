from __future__ import annotations

import pickle
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from tailrace.core.ids import GroupId, ResponseId
from tailrace.rewards.binding import RewardFunction
from tailrace.rewards.score_task import ScoreTask
from tailrace.rewards.scoring import labels
from tailrace.rewards.verifiers import BUILT_IN, exact_match

COLUMNS = ("prompt", "answer", "level")


def task(**row: object) -> ScoreTask:
    row = {"prompt": "1+1=", "answer": "2", "level": 3, **row}
    return ScoreTask(response_id=ResponseId(GroupId("train", 0, 1), 0), row=row, response="two")


def load(directory: Path, code: str, name: str = "f", columns: tuple[str, ...] = COLUMNS) -> RewardFunction:
    file = directory / f"rewards_{len(list(directory.iterdir()))}.py"
    file.write_text(textwrap.dedent(code))
    return RewardFunction.load(f"{file}:{name}", columns)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("prompt, response, answer", ("1+1=", "two", "2")),
        ("completion, label", ("two", "2")),
        ("solution_str, ground_truth", ("two", "2")),
        ("solution, reference", ("2", "2")),
        ("level", (3,)),
        ("data_source, extra_info", ("train", {"level": 3})),
        ("response, strictness=0.5", ("two", 0.5)),
        ("response, /, answer", ("two", "2")),
        ("response, *, level=0", ("two", 3)),
    ],
)
def test_parameters_are_filled_by_their_names(tmp_path: Path, parameters: str, expected: tuple) -> None:
    names = [name.split("=")[0].strip() for name in parameters.split(",")]
    body = ", ".join(name for name in names if name.isidentifier())
    assert load(tmp_path, f"def f({parameters}): return ({body},)")(task()) == expected


def test_a_column_wins_over_an_alias_but_never_over_the_response(tmp_path: Path) -> None:
    function = load(tmp_path, "def f(label, data_source, completion): return (label, data_source, completion)")
    row = {"label": "mine", "data_source": "gsm8k", "completion": "a reference text"}
    assert function(task(**row)) == ("mine", "gsm8k", "two")


def test_keyword_arguments_receive_what_is_left(tmp_path: Path) -> None:
    left = load(tmp_path, "def f(response, **rest): return rest")(task())
    assert left == {"prompt": "1+1=", "answer": "2", "level": 3, "data_source": "train", "extra_info": {"level": 3}}


def test_a_function_written_for_another_system_runs_unchanged(tmp_path: Path) -> None:
    code = """
        def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
            return {"score": float(solution_str == "two" and ground_truth == "2"), "level": extra_info["level"]}
    """
    assert load(tmp_path, code, "compute_score")(task()) == {"score": 1.0, "level": 3}


def test_batched_functions_receive_lists_of_one_and_chats_where_the_prompt_is_one(tmp_path: Path) -> None:
    code = "def f(prompts, completions, completion_ids, answer, **columns): return [(prompts, completions, columns)]"
    function = load(tmp_path, code)
    prompts, completions, columns = function.shape.result(function(task()))
    assert (prompts, completions, columns["level"]) == (["1+1="], ["two"], [3])
    assert columns["trainer_state"] is None
    chat = [{"role": "user", "content": "1+1="}]
    prompts, completions, _ = function.shape.result(function(task(prompt=chat)))
    assert (prompts, completions) == ([chat], [[{"role": "assistant", "content": "two"}]])


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        ("completions, difficulty", "difficulty"),
        ("queries, prompts, labels, rewards", "rewards"),
        ("args, samples", "samples"),
        ("prompt, completions, difficulty", "difficulty"),
    ],
)
def test_a_parameter_nobody_can_fill_is_named_in_every_shape(tmp_path: Path, parameters: str, wanted: str) -> None:
    with pytest.raises(ValueError, match=f"wants '{wanted}', which is neither given nor a column"):
        load(tmp_path, f"def f({parameters}): return 0")


def test_a_parameter_nobody_can_fill_is_named_with_what_is_available(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"wants 'difficulty'.*one of response,.*answer,.*level"):
        load(tmp_path, "def f(response, difficulty): return 0")
    with pytest.raises(ValueError, match="wants 'answer'"):
        load(tmp_path, "def f(answer): return 0", columns=("prompt",))


def test_a_row_that_lacks_a_promised_column_is_an_error_of_that_response(tmp_path: Path) -> None:
    function = load(tmp_path, "def f(bonus): return 0", columns=("prompt", "bonus"))
    with pytest.raises(TypeError, match="no 'bonus'"):
        function(task())


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("exact", rf"neither built in \({', '.join(BUILT_IN)}\) nor"),
        (":f", "neither built in"),
        ("nowhere.py:f", "there is no file .*nowhere.py"),
        ("no_such_package.rewards:f", "importing it raised ModuleNotFoundError"),
        ("json:missing", "'missing' does not exist; json has .*dumps"),
        ("json:JSONDecoder", "'JSONDecoder' is not a function"),
    ],
)
def test_a_function_that_cannot_be_found_is_refused_with_a_sentence(spec: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence) as caught:
        RewardFunction.load(spec, COLUMNS)
    assert repr(spec) in str(caught.value)


def test_a_function_that_was_pickled_is_loaded_and_anything_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "reward-exact-0a1b.pickle").write_bytes(pickle.dumps(exact_match))
    spec = f"pickle:{tmp_path / 'reward-exact-0a1b.pickle'}"
    assert RewardFunction.load(spec, COLUMNS)(task(answer="two")) == 1.0
    assert labels([spec, "math_verify"]) == ["exact", "math_verify"]
    (tmp_path / "number.pickle").write_bytes(pickle.dumps(3))
    with pytest.raises(ValueError, match="the file holds int, not a function"):
        RewardFunction.load(f"pickle:{tmp_path / 'number.pickle'}", COLUMNS)
    with pytest.raises(ValueError, match="loading it raised FileNotFoundError"):
        RewardFunction.load("pickle:nowhere.pickle", COLUMNS)


def test_a_file_that_fails_to_import_says_how(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="importing it raised ZeroDivisionError"):
        load(tmp_path, "1 / 0")


def test_a_file_can_import_its_neighbours_and_define_dataclasses(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_rewards.py").write_text("BONUS = 0.5\n")
    code = """
        from __future__ import annotations
        from dataclasses import dataclass
        import neighbour_of_rewards

        @dataclass
        class Rule:
            bonus: float = neighbour_of_rewards.BONUS

        def f(): return Rule().bonus
    """
    assert load(tmp_path, code)(task()) == 0.5


def test_functions_of_installed_modules_and_built_in_ones_are_found() -> None:
    assert RewardFunction.load("tailrace.rewards.verifiers:exact_match", COLUMNS)(task()) == 0.0
    assert RewardFunction.load("exact_match", COLUMNS)(task(answer="two")) == 1.0


def test_a_function_of_tokens_alone_is_called_as_trl_calls_it(tmp_path: Path) -> None:
    function = load(tmp_path, "def f(completion_ids, **kwargs): return [-len(ids) for ids in completion_ids]")
    assert function.shape.result(function(replace(task(), response_tokens=(7, 8, 9)))) == -3
    plain = load(tmp_path, "def f(response, completion_ids): return -len(completion_ids)")
    assert plain.shape.result(plain(replace(task(), response_tokens=(7, 8, 9)))) == -3
