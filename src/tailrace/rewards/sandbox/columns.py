"""Test cases in the rows of code sets.

    inputs, outputs, fn_name           verl (PRIME's code sets, APPS, TACO); lists; `fn_name` for function calls
    a list of input, output, testtype  SkyRL (LiveCodeBench); `functional` with `metadata.func_name`
    test_cases: type, input, output    prime-rl (SYNTHETIC-1 and its successors); `function_call` with `fn_name`
    ground_truth, dataset_type         prime-rl (DeepCoder): the cases are in `ground_truth`
    tests                              prime-rl (INTELLECT-3): the cases are in `tests`
    test_case_inputs, ..._outputs      prime-rl (code environment): each input and output is JSON text

Any of them may be JSON text. They are looked for in the columns `tests`, `test_cases`, `verification_info`, `info`,
`input_output` and `answer`, in this order. Arguments of a function are a list, or text with one JSON value in each
line; an expected value is JSON, or text that is JSON. Where the expected value is a list, its first element counts as
right too, because some sets wrap the value in a list.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.rewards.sandbox.cases import CallCase, Case, StdinCase

COLUMNS = ("tests", "test_cases", "verification_info", "info", "input_output", "answer")
_WRAPPERS = ("test_cases", "tests", "verification_info", "ground_truth")
_CALLS = ("functional", "function_call", "call_based")


def cases_in(row: Mapping[str, object]) -> list[Case]:
    """The cases of a row; `ValueError` if it has none."""
    for column in COLUMNS:
        if row.get(column) is not None and (found := _cases(row[column], row)):
            return found
    held = ", ".join(column for column in COLUMNS if row.get(column) is not None) or "none of them"
    raise ValueError(
        f"the row has no test cases that code_tests understands; it looks in {', '.join(COLUMNS)}, and found {held}"
    )


def _cases(value: object, row: Mapping[str, object]) -> list[Case]:
    value = _decoded(value)
    if isinstance(value, Mapping):
        return _cases_of_mapping(value, row)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_case_of_record(record, row) for record in map(_decoded, value) if isinstance(record, Mapping)]
    return []


def _cases_of_mapping(value: Mapping[str, Any], row: Mapping[str, object]) -> list[Case]:
    language = value.get("language")
    if language not in (None, "", "python"):
        raise ValueError(f"code_tests runs Python, and the tests are for {language!r}")
    for inputs, outputs, is_text in (
        ("inputs", "outputs", False),
        ("test_case_inputs", "test_case_outputs", True),
    ):
        if value.get(inputs) is not None and value.get(outputs) is not None:
            given, wanted = _decoded(value[inputs]), _decoded(value[outputs])
            if len(given) != len(wanted):
                raise ValueError(f"a row has {len(given)} {inputs} and {len(wanted)} {outputs}")
            read = json.loads if is_text else _as_it_is
            name = value.get("fn_name")
            return [_case(name, read(each), read(right)) for each, right in zip(given, wanted, strict=True)]
    for wrapper in _WRAPPERS:
        if value.get(wrapper) is not None:
            return _cases(value[wrapper], row)
    return []


def _case_of_record(record: Mapping[str, Any], row: Mapping[str, object]) -> Case:
    if "input" not in record or "output" not in record:
        raise ValueError(f"a test case has no 'input' or no 'output': its keys are {', '.join(map(str, record))}")
    kind = record.get("testtype", record.get("type"))
    name = record.get("fn_name") or _function_name(record.get("metadata")) or _function_name(row.get("metadata"))
    if kind in _CALLS and not name:
        raise ValueError("a test case calls a function and does not say which ('fn_name' or 'metadata.func_name')")
    return _case(name if kind in _CALLS or kind is None else None, record["input"], record["output"])


def _function_name(metadata: object) -> str | None:
    metadata = _decoded(metadata)
    name = metadata.get("func_name") if isinstance(metadata, Mapping) else None
    return name if isinstance(name, str) and name else None


def _case(function: str | None, given: Any, wanted: Any) -> Case:
    if not function:
        return StdinCase(stdin=_text(given), stdout=_text(wanted))
    if isinstance(given, str):
        given = [json.loads(line) for line in given.splitlines() if line.strip()]
    elif not isinstance(given, list | tuple):
        raise ValueError(f"the arguments of {function} must be a list or lines of JSON, got {given!r}")
    if isinstance(wanted, str):
        wanted = _decoded(wanted)
    also = tuple(wanted[:1]) if isinstance(wanted, list) else ()
    return CallCase(function=function, arguments=tuple(given), value=wanted, also=also)


def _text(value: Any) -> str:
    """Input and output are text, or a list of lines."""
    return "\n".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _decoded(value: Any) -> Any:
    """What JSON text says; other text and values as they are."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    # Columns of tables: arrays of numpy know how to become lists.
    return value.tolist() if hasattr(value, "tolist") else value


def _as_it_is(value: Any) -> Any:
    return value
