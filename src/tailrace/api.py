"""Train from Python, with objects where the command line has paths.

    import tailrace

    def reward(response: str, answer: str) -> float:
        return float(response.strip().endswith(answer))

    result = tailrace.train(
        model="tiny-arith",
        prompts=[{"prompt": "17+8=", "answer": "25"}, ...],
        reward=reward,
        output_dir="runs/mine",
        max_steps=10,
        learning_rate=3e-4,
    )
    print(result.metrics["reward/mean"], result.checkpoint)

Works in a script without a ``__main__`` guard and in a notebook. The same call again continues an unfinished run.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

from tailrace.config.function_names import function_name
from tailrace.config.load import SettingsError, assemble, read_recipe
from tailrace.config.names import full_name

if TYPE_CHECKING:
    from tailrace.commands.train import RunResult

Reward = str | Callable[..., Any]
Prompts = str | Path | Sequence[Mapping[str, Any] | str]


def train(
    *,
    model: str | Path | None = None,
    prompts: Prompts | None = None,
    reward: Reward | Sequence[Reward] | None = None,
    output_dir: str | Path,
    recipe: str | None = None,
    say: Callable[[str], None] | None = None,
    **settings: Any,
) -> RunResult:
    """Train and return how it ended.

    ``settings``: any setting by its own name (``learning_rate=3e-4``), by its full name
    (``**{"trainer.learning_rate": 3e-4}``), or a whole section as a mapping (``trainer={...}``). They win over
    ``recipe``. ``SettingsError`` says what to change when the run cannot begin.
    """
    from tailrace.commands.train import say_at_once
    from tailrace.commands.train import train as run

    say = say or say_at_once
    folder, inputs = Path(output_dir), _Inputs(Path(output_dir).absolute() / "inputs")
    given: dict[str, Any] = {full_name(name): value for name, value in settings.items()}
    given["output_dir"] = folder
    if model is not None:
        given["model.path"] = str(model)
    if prompts is not None:
        given["data.train"] = inputs.as_file(prompts)
    if reward is not None:
        rewards = [reward] if isinstance(reward, str) or callable(reward) else list(reward)
        given["reward.functions"] = [inputs.as_spec(item) for item in rewards]
    return run(assemble(read_recipe(recipe) if recipe is not None else {}, given, hint=say), say, inputs.files)


class _Inputs:
    """Objects as files of the run directory, under names that say what is inside: the same call names the same file.

    ``files`` are written by the run itself, once it knows that it may use the directory.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.files: dict[Path, bytes] = {}

    def as_file(self, prompts: Prompts) -> str:
        if isinstance(prompts, str | Path):
            return str(prompts)
        # Only what is a list for certain: a table, walked through, gives the names of its columns.
        is_list = isinstance(prompts, list | tuple)
        rows = ({"prompt": row} if is_list and isinstance(row, str) else row for row in prompts)
        lines = "".join(_json_line(row, index) for index, row in enumerate(rows))
        return str(self._keep("prompts", lines.encode(), ".jsonl"))

    def as_spec(self, reward: Reward) -> str:
        """A function travels to the reward processes by value: it may live in a script or a notebook cell."""
        if isinstance(reward, str):
            return reward
        name = getattr(reward, "__name__", "function")
        path = self._folder / f"reward-{name}-{function_name(reward)}.pickle"
        self.files[path] = _pickled(reward, name)
        return f"pickle:{path}"

    def _keep(self, stem: str, content: bytes, suffix: str) -> Path:
        path = self._folder / f"{stem}-{hashlib.sha256(content).hexdigest()[:12]}{suffix}"
        self.files[path] = content
        return path


def _json_line(row: Any, index: int) -> str:
    if not isinstance(row, Mapping):
        raise SettingsError(
            f"prompts[{index}] is of type {type(row).__name__}; give a list of strings, or of rows like"
            " {'prompt': '17+8=', 'answer': '25'}"
        )
    try:
        return json.dumps(dict(row)) + "\n"
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"prompts[{index}] cannot be written as JSON ({error}); give strings, numbers, lists and dicts"
        ) from None


def _pickled(reward: Callable[..., Any], name: str) -> bytes:
    try:
        pickled: bytes = cloudpickle.dumps(reward)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise SettingsError(
            f"reward function '{name}' cannot be sent to the reward processes ({error}); make what it holds (a lock, a"
            " connection, a file) inside the function, or put it into a file and give reward='path/to/file.py:function'"
        ) from None
    return pickled
