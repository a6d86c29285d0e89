"""Rows in the shapes of other systems' code sets: two cases that read input, or one that calls a function."""

from __future__ import annotations

import json

from tailrace.rewards.sandbox.cases import CallCase, StdinCase

ADD = [StdinCase(stdin="1 2\n", stdout="3\n"), StdinCase(stdin="3 4\n", stdout="7\n")]
CALL = CallCase(function="add", arguments=(1, 2), value=3)
ROWS = {
    "verl": {"answer": json.dumps({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]})},
    "apps": {"input_output": {"inputs": [["1 2", ""], "3 4\n"], "outputs": [["3", ""], "7\n"]}},
    "skyrl": {
        "answer": json.dumps(
            [
                {"input": "1 2\n", "output": "3\n", "testtype": "stdin"},
                {"input": "3 4\n", "output": "7\n", "testtype": "stdin"},
            ]
        )
    },
    "prime-rl verification_info": {
        "answer": "a solution that is not a test",
        "verification_info": json.dumps(
            {
                "language": "python",
                "test_cases": [
                    {"type": "stdin_stdout", "input": "1 2\n", "output": "3\n", "fn_name": None},
                    {"type": "stdin_stdout", "input": "3 4\n", "output": "7\n", "fn_name": None},
                ],
            }
        ),
    },
    "prime-rl deepcoder": {
        "info": {
            "dataset_type": "primeintellect",
            "ground_truth": json.dumps(
                [
                    {"type": "stdin_stdout", "input": "1 2\n", "output": "3\n"},
                    {"type": "stdin_stdout", "input": "3 4\n", "output": "7\n"},
                ]
            ),
        }
    },
    "prime-rl code": {
        "answer": "",
        "info": json.dumps(
            {"source": "x", "tests": json.dumps({"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"]})}
        ),
    },
    "prime-rl code environment": {
        "answer": "",
        "info": {
            "verification_info": {
                "fn_name": None,
                "test_case_inputs": ['"1 2\\n"', '"3 4\\n"'],
                "test_case_outputs": ['"3\\n"', '"7\\n"'],
            }
        },
    },
    "own": {"tests": [{"input": "1 2\n", "output": "3\n"}, {"input": "3 4\n", "output": "7\n"}]},
}
CALL_ROWS = {
    "verl": {"answer": {"inputs": ["1\n2"], "outputs": ["3"], "fn_name": "add"}},
    "apps": {"answer": {"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}},
    "skyrl": {
        "answer": json.dumps(
            [{"input": "1\n2", "output": "3", "testtype": "functional", "metadata": {"func_name": "add"}}]
        )
    },
    "prime-rl verification_info": {
        "verification_info": {
            "test_cases": [{"type": "function_call", "fn_name": "add", "input": [1, 2], "output": 3}],
        }
    },
    "prime-rl code environment": {
        "info": {"verification_info": {"fn_name": "add", "test_case_inputs": ['"1\\n2"'], "test_case_outputs": ['"3"']}}
    },
}
