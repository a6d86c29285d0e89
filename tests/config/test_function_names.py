"""The name of a function's code is the same in every process, and another one for other code."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from tailrace.config.function_names import function_name

SOURCE = """
from tailrace.config.function_names import function_name
text = "def reward(response, answer='x'):\\n    return response in {'yes', 'no', 'perhaps'} or answer"
code = compile(text, FILE, "exec")
names = {}
exec(code, names)
print(function_name(names["reward"]))
"""


def elsewhere(file: str, seed: int) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", SOURCE.replace("FILE", repr(file))],
        env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout


def test_neither_the_process_nor_the_place_of_a_function_changes_its_name() -> None:
    assert elsewhere("ipykernel_1/a.py", 1) == elsewhere("ipykernel_2/b.py", 2)


def test_another_body_constant_or_default_is_another_name() -> None:
    names = {
        function_name(lambda response: 1.0),
        function_name(lambda response: 2.0),
        function_name(lambda response: response in {"a"}),
        function_name(lambda response: response in {"b"}),
        function_name(lambda response, scale=1: scale),
        function_name(lambda response, scale=2: scale),
    }
    assert len(names) == 6


def test_objects_that_can_be_called_have_names_too() -> None:
    class Reward:
        def __call__(self, response: str) -> float:
            return 1.0

    def scaled(response: str, scale: float) -> float:
        return scale

    assert function_name(Reward()) == function_name(Reward())
    assert function_name(partial(scaled, scale=2.0)) == function_name(scaled)
