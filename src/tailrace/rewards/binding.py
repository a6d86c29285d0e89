"""From the name of a reward function to a call of it, by the names of its parameters.

A function is built in (``verifiers.py: BUILT_IN``), or `path/to/file.py:function` or `package.module:function`;
`pickle:FILE` is one that a program handed over as an object.
Its parameters tell its shape (``shapes.py``), and each is filled by its name:

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
import pickle
import sys
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from tailrace.rewards.score_task import ScoreTask, TimedReward
from tailrace.rewards.shapes import Shape, shape_of
from tailrace.rewards.verifiers import BUILT_IN

PICKLE_PREFIX = "pickle:"

_NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFunction:
    """A loaded function and the parameters by which it is called."""

    spec: str
    call: Callable[..., object]
    parameters: tuple[Parameter, ...]
    takes_rest: bool
    shape: Shape

    @classmethod
    def load(cls, spec: str, columns: Collection[str], options: Mapping[str, object] | None = None) -> Self:
        """Find the function and check that rows with `columns` can fill its parameters. `options`: of a built-in
        reward that has some."""
        call = _find(spec, options or {})
        try:
            called = call.prepare if isinstance(call, TimedReward) else call
            parameters = inspect.signature(called).parameters.values()
        except ValueError as error:
            raise ValueError(f"reward function {spec!r} does not tell its parameters: {error}") from error
        named = tuple(parameter for parameter in parameters if parameter.kind in _NAMED)
        shape = shape_of({parameter.name for parameter in named})
        available = shape.available(columns)
        for parameter in named:
            if parameter.default is Parameter.empty and parameter.name not in available:
                raise ValueError(
                    f"reward function {spec!r} wants {parameter.name!r}, which is neither given nor a column of "
                    f"every prompt; rename it to one of {', '.join(available)}, or give it a default"
                )
        takes_rest = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters)
        return cls(spec=spec, call=call, parameters=named, takes_rest=takes_rest, shape=shape)

    def prepare(self, task: ScoreTask) -> tuple[float | None, Callable[[], object]]:
        """Return the limit of this call in seconds, and the call. It returns a value, or something to await. None: the
        function knows no limit of its own."""
        positional, by_name = self._arguments(task)
        if isinstance(self.call, TimedReward):
            return self.call.prepare(*positional, **by_name)
        return None, partial(self.call, *positional, **by_name)

    def __call__(self, task: ScoreTask) -> object:
        return self.prepare(task)[1]()

    def _arguments(self, task: ScoreTask) -> tuple[list[Any], dict[str, Any]]:
        values = self.shape.values(task)
        positional: list[Any] = []
        by_name: dict[str, Any] = {}
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
            by_name |= {name: value for name, value in self.shape.rest(task).items() if name not in names}
        return positional, by_name


def _find(spec: str, options: Mapping[str, object]) -> Callable[..., object]:
    if spec in BUILT_IN:
        return BUILT_IN[spec](**options)
    if spec.startswith(PICKLE_PREFIX):
        return _load_pickle(spec)
    place, _, name = spec.rpartition(":")
    if not place or not name:
        raise ValueError(
            f"reward function {spec!r} is neither built in ({', '.join(BUILT_IN)}) nor of the form "
            "path/to/file.py:function or package.module:function"
        )
    if place.endswith(".py") and not Path(place).is_file():
        raise ValueError(f"reward function {spec!r}: there is no file {os.path.abspath(place)}; correct the path")
    try:
        module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    except Exception as error:  # a user's module may raise anything while it is imported
        raise ValueError(
            f"reward function {spec!r}: importing it raised {type(error).__name__}: {error};"
            f" repair {place} or what it needs"
        ) from error
    found: Callable[..., object] | None = getattr(module, name, None)
    if not callable(found) or inspect.isclass(found):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        what = "is not a function" if hasattr(module, name) else "does not exist"
        raise ValueError(f"reward function {spec!r}: {name!r} {what}; {place} has {', '.join(functions) or 'none'}")
    return found


def _load_pickle(spec: str) -> Callable[..., object]:
    try:
        found: object = pickle.loads(Path(spec.removeprefix(PICKLE_PREFIX)).read_bytes())
    except Exception as error:  # what it needs may be missing here, and importing that may raise anything
        raise ValueError(f"reward function {spec!r}: loading it raised {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ValueError(f"reward function {spec!r}: the file holds {type(found).__name__}, not a function")
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
