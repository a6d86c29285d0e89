"""From the name of a reward function to a call of it, by the names of its parameters.

A function is `exact_match`, `math_verify`, `path/to/file.py:function` or `package.module:function`. Each parameter
is filled by its name, so that functions written for other systems run unchanged:

    response   also completion, solution_str                            the text that was generated
    answer     also ground_truth, label, solution, reference            the row's answer
    prompt                                                              the row's prompt, as it was read
    data_source                                                         the row's, or the name of the prompt set
    extra_info                                                          the row's, or all its other columns
    any column of the row, by its own name (it wins over an alias; the names of the response are never a column)

`**kwargs` receives what is left. A required parameter that nobody can fill is a `ValueError` when the function is
loaded, before any response is scored.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import zlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import Self

from tailrace.rewards.outcome import ScoreTask
from tailrace.rewards.verifiers import BUILT_IN

RESPONSE_NAMES = ("response", "completion", "solution_str")
ANSWER_NAMES = ("answer", "ground_truth", "label", "solution", "reference")
ALWAYS_THERE = (*RESPONSE_NAMES, "prompt", "data_source", "extra_info")

_NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFunction:
    """A loaded function and the parameters by which it is called."""

    spec: str
    call: Callable[..., object]
    parameters: tuple[Parameter, ...]
    takes_rest: bool

    @classmethod
    def load(cls, spec: str, columns: Collection[str]) -> Self:
        """Find the function and check that rows with `columns` can fill its parameters."""
        call = _find(spec)
        try:
            parameters = inspect.signature(call).parameters.values()
        except ValueError as error:
            raise ValueError(f"reward function {spec!r} does not tell its parameters: {error}") from error
        named = tuple(parameter for parameter in parameters if parameter.kind in _NAMED)
        available = _available(columns)
        for parameter in named:
            if parameter.default is Parameter.empty and parameter.name not in available:
                raise ValueError(
                    f"reward function {spec!r} wants {parameter.name!r}, which is neither given nor a column of "
                    f"every prompt; available: {', '.join(available)}"
                )
        takes_rest = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters)
        return cls(spec=spec, call=call, parameters=named, takes_rest=takes_rest)

    def __call__(self, task: ScoreTask) -> object:
        """What the function returns for this response: a value, or something to await."""
        values = arguments(task)
        positional: list[object] = []
        by_name: dict[str, object] = {}
        for parameter in self.parameters:
            if parameter.name not in values and parameter.default is Parameter.empty:
                raise TypeError(f"this prompt's row has no {parameter.name!r}")
            value = values.get(parameter.name, parameter.default)
            if parameter.kind is Parameter.POSITIONAL_ONLY:
                positional.append(value)
            else:
                by_name[parameter.name] = value
        if self.takes_rest:
            names = {parameter.name for parameter in self.parameters}
            by_name |= {name: value for name, value in _rest(task).items() if name not in names}
        return self.call(*positional, **by_name)


def arguments(task: ScoreTask) -> dict[str, object]:
    """Every value a parameter can be filled with, by name."""
    aliases = dict.fromkeys(ANSWER_NAMES, task.row["answer"]) if "answer" in task.row else {}
    return aliases | _rest(task) | dict.fromkeys(RESPONSE_NAMES, task.response)


def _rest(task: ScoreTask) -> dict[str, object]:
    others = {name: value for name, value in task.row.items() if name not in ("prompt", "answer")}
    return (
        {"data_source": task.trajectory.group.source, "extra_info": others}
        | dict(task.row)
        | {"response": task.response}
    )


def _available(columns: Collection[str]) -> list[str]:
    answers = ANSWER_NAMES if "answer" in columns else ()
    return list(dict.fromkeys([*ALWAYS_THERE, *answers, *columns]))


def _find(spec: str) -> Callable[..., object]:
    if spec in BUILT_IN:
        return BUILT_IN[spec]()
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise ValueError(
            f"reward function {spec!r} is neither built in ({', '.join(BUILT_IN)}) nor of the form "
            "path/to/file.py:function or package.module:function"
        )
    if place.endswith(".py") and not Path(place).is_file():
        raise ValueError(f"reward function {spec!r}: there is no file {os.path.abspath(place)}")
    try:
        module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    except Exception as error:  # a user's module may raise anything while it is imported
        raise ValueError(f"reward function {spec!r}: importing it raised {type(error).__name__}: {error}") from error
    found: Callable[..., object] | None = getattr(module, name, None)
    if not callable(found) or inspect.isclass(found):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        what = "is not a function" if hasattr(module, name) else "does not exist"
        raise ValueError(f"reward function {spec!r}: {name!r} {what}; {place} has {', '.join(functions) or 'none'}")
    return found


def _load_module(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return importlib.import_module(name)


def _load_file(path: Path) -> ModuleType:
    """Import a file as Python runs a script: the modules beside it can be imported."""
    path = path.resolve()
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = f"tailrace_reward_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
