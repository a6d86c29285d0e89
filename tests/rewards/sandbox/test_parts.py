"""The parts of the sandbox that need no processes: filter, comparison, columns, program text, groups, user ids."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest

from rewards.sandbox.rows import ADD, CALL, CALL_ROWS, ROWS
from tailrace.rewards.sandbox.cases import CallCase, SandboxError, StdinCase
from tailrace.rewards.sandbox.columns import cases_in
from tailrace.rewards.sandbox.comparison import is_output_right, is_result_right
from tailrace.rewards.sandbox.foresight import needed_modules, needed_names
from tailrace.rewards.sandbox.memory_group import MemoryParent, nearest_that_hands_on, own_groups
from tailrace.rewards.sandbox.program_text import program_in
from tailrace.rewards.sandbox.slots import NUM_SLOTS, first_uid
from tailrace.rewards.sandbox.syscall_filter import ARCHITECTURES, REFUSED, filter_bytes

ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000


def answer(machine: str, call: int, *arguments: int, audit_id: int | None = None) -> int:
    """What the filter says about a call: the few instructions that it uses, carried out here."""
    audit_id = ARCHITECTURES[machine].audit_id if audit_id is None else audit_id
    words = struct.pack("=iIQ6Q", call, audit_id, 0, *arguments, *[0] * (6 - len(arguments)))
    program = list(struct.iter_unpack("=HBBI", filter_bytes(machine)))
    place = held = 0
    while True:
        code, if_true, if_false, value = program[place]
        place += 1
        if code == 0x20:
            held = struct.unpack_from("=I", words, value)[0]
        elif code == 0x06:
            return value
        else:
            is_true = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}[code]
            place += if_true if is_true else if_false


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter_refuses_what_it_names_and_allows_the_rest(machine: str) -> None:
    calls = ARCHITECTURES[machine].calls
    for name in REFUSED:
        if name in calls:
            assert answer(machine, calls[name]) == FAIL | errno.EPERM, name
    assert {name for name in REFUSED if name not in calls} <= {
        "modify_ldt",
        "iopl",
        "ioperm",
        "uselib",
        "ustat",
        "sysfs",
    }
    for call in range(500):
        if call not in calls.values():
            assert answer(machine, call) == ALLOW, call
    assert answer(machine, calls["clone3"]) == FAIL | errno.ENOSYS
    assert answer(machine, 0, audit_id=0x40000003) == KILL


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_filter_looks_at_arguments(machine: str) -> None:
    calls = ARCHITECTURES[machine].calls
    assert answer(machine, calls["clone"], 0x01200011) == ALLOW  # what fork asks for
    assert answer(machine, calls["clone"], 0x003D0F00) == ALLOW  # what a thread asks for
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer(machine, calls["clone"], 0x11 | flag) == FAIL | errno.EPERM
    assert answer(machine, calls["socket"], 1) == ALLOW
    for family in (2, 10, 16, 17, 38, 40):
        assert answer(machine, calls["socket"], family) == FAIL | errno.EPERM
    assert answer(machine, calls["ioctl"], 0, 0x5401) == ALLOW
    assert answer(machine, calls["ioctl"], 0, 0x5412) == FAIL | errno.EPERM


def test_the_filter_kills_the_second_convention_of_x86() -> None:
    assert answer("x86_64", (1 << 30) + 1) == KILL


def test_there_is_no_filter_for_an_unknown_machine() -> None:
    with pytest.raises(ValueError, match="riscv64"):
        filter_bytes("riscv64")


@pytest.mark.parametrize(
    ("output", "expected", "tolerance", "is_right"),
    [
        (b"7\n", "7", 0.0, True),
        (b"7", "7\n\n", 0.0, True),
        (b"1  \n2\n", "1\n2", 0.0, True),
        (b"1 2\n", "1\n2", 0.0, False),
        (b"1\n\n2", "1\n2", 0.0, False),
        (b"", "", 0.0, True),
        (b"1.0 x", "1 x", 0.0, True),
        (b"0.3000001", "0.3", 0.0, False),
        (b"0.3000001", "0.3", 1e-6, True),
        (b"nan", "nan", 0.0, True),
        (b"inf", "1", 1e9, False),
        (b"a" * 100_000, "a", 0.0, False),
        (b"\xff", "?", 0.0, False),
        (b"1" * 5000, "1" * 5000, 0.0, True),
        (b"1e999999999", "1", 0.5, False),
    ],
)
def test_output_is_compared_by_lines_and_numbers(
    output: bytes, expected: str, tolerance: float, is_right: bool
) -> None:
    assert is_output_right(output, expected, tolerance) is is_right


@pytest.mark.parametrize(
    ("result", "value", "also", "tolerance", "is_right"),
    [
        (b"[1, 2]", (1, 2), (), 0.0, True),
        (b'{"1": 2}', {1: 2}, (), 0.0, True),
        (b"1.0", 1, (), 0.0, True),
        (b"1.05", 1, (), 0.1, True),
        (b"[[1.05]]", [[1]], (), 0.1, True),
        (b"[1]", [1, 2], (), 0.1, False),
        (b"5", [5], (5,), 0.0, True),
        (b"NaN", 1, (), 0.0, False),
        (b"true", "secret", (), 0.0, False),
        (b"not json", "secret", (), 0.0, False),
        (b"[" * 50_000, "secret", (), 0.0, False),
        (b"9" * 10_000, 9, (), 0.0, False),
        (b'"' + b"x" * 200_000 + b'"', "x", (), 0.0, False),
    ],
)
def test_results_are_compared_as_json(
    result: bytes, value: object, also: tuple[object, ...], tolerance: float, is_right: bool
) -> None:
    case = CallCase(function="f", arguments=(), value=value, also=also)
    assert is_result_right(result, case, tolerance) is is_right


@pytest.mark.parametrize(
    ("response", "program"),
    [
        ("print(1)", "print(1)"),
        ("Here:\n```python\nprint(1)\n```\nDone.", "print(1)\n"),
        ("```python\nprint(1)\n```\nor\n```py\nprint(2)\n```", "print(2)\n"),
        ("```python\nprint(1)\n```\nIt prints\n```\n1\n```", "print(1)\n"),
        ("```\nprint(1)\n```", "print(1)\n"),
        ("```python\nprint(1)", "print(1)"),
        ("<think>```python\nprint(0)\n```</think>```python\nprint(1)\n```", "print(1)\n"),
        ("```cpp\nint main() {}\n```\n```python\nprint(1)\n```", "print(1)\n"),
    ],
)
def test_the_program_is_the_last_python_block(response: str, program: str) -> None:
    assert program_in(response) == program


@pytest.mark.parametrize("name", ROWS)
def test_cases_that_read_input_are_found_in_rows_of_every_format(name: str) -> None:
    found = cases_in(ROWS[name])
    assert [(case.stdin.strip(), case.stdout.strip()) for case in found if isinstance(case, StdinCase)] == [
        (case.stdin.strip(), case.stdout.strip()) for case in ADD
    ]


@pytest.mark.parametrize("name", CALL_ROWS)
def test_cases_that_call_a_function_are_found_in_rows_of_every_format(name: str) -> None:
    assert cases_in(CALL_ROWS[name]) == [CALL]


def test_a_value_that_a_set_wraps_in_a_list_counts_too() -> None:
    (case,) = cases_in({"answer": {"inputs": [[1, 2]], "outputs": [[3]], "fn_name": "add"}})
    assert isinstance(case, CallCase)
    assert is_result_right(b"3", case)
    assert is_result_right(b"[3]", case)
    assert not is_result_right(b"4", case)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "x"}, "found none of them"),
        ({"answer": "42"}, "no test cases"),
        ({"answer": {"inputs": ["1"], "outputs": []}}, "1 inputs and 0 outputs"),
        ({"tests": [{"input": "1", "output": "1", "type": "function_call"}]}, "does not say which"),
        ({"tests": [{"input": "1"}]}, "no 'output'"),
        ({"tests": {"language": "cpp", "test_cases": []}}, "for 'cpp'"),
    ],
)
def test_a_row_without_cases_is_an_error_of_the_reward(row: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cases_in(row)


def test_names_are_defined_only_if_they_occur() -> None:
    program = "from heapq import heappush\ndef f(a: List[int]): return math.gcd(*a)"
    assert needed_modules(program) == ["heapq", "math"]
    assert ("typing", "List") in needed_names(program)
    assert ("math", "") in needed_names(program)
    assert needed_names("print(1)") == []


def test_user_ids_are_far_from_those_in_use() -> None:
    assert first_uid([(0, 4294967295)]) == 2_000_000_000
    assert first_uid([(0, 65536)]) + NUM_SLOTS == 61184
    assert first_uid([(0, 1), (1, 100_000)]) + NUM_SLOTS == 100_001
    with pytest.raises(SandboxError, match="only 1 user ids"):
        first_uid([(1000, 1)])


def proc(folder: Path, cgroup: str, mountinfo: str) -> Path:
    (folder / "proc").mkdir()
    (folder / "proc" / "cgroup").write_text(cgroup)
    (folder / "proc" / "mountinfo").write_text(mountinfo)
    return folder / "proc"


def test_a_group_of_version_2_is_made_below_the_nearest_one_that_hands_memory_on(tmp_path: Path) -> None:
    top = tmp_path / "cgroup"
    (top / "user" / "own").mkdir(parents=True)
    for folder, controllers in ((top, "memory"), (top / "user", "cpu memory"), (top / "user" / "own", "")):
        (folder / "cgroup.subtree_control").write_text(controllers)
    mounts = f"30 25 0:26 / {top} rw - cgroup2 cgroup2 rw\n"
    assert own_groups(proc(tmp_path, "0::/user/own\n", mounts)) == [(2, top / "user" / "own")]
    assert nearest_that_hands_on(top / "user" / "own") == top / "user"
    (top / "user" / "cgroup.subtree_control").write_text("cpu")
    (top / "cgroup.subtree_control").write_text("")
    assert nearest_that_hands_on(top / "user" / "own") is None


def test_a_group_of_version_1_is_found_through_its_mount(tmp_path: Path) -> None:
    cgroup = "4:memory:/box/own\n3:cpu:/\n0::/\n"
    mounts = (
        "37 33 0:34 /box /sys/memory rw,relatime shared:1 - cgroup cgroup rw,memory\n38 33 0:1 / /x rw - tmpfs t rw\n"
    )
    assert own_groups(proc(tmp_path, cgroup, mounts)) == [(1, Path("/sys/memory/own"))]


def test_where_no_group_can_be_made_the_reason_is_told(tmp_path: Path) -> None:
    assert MemoryParent.find(proc(tmp_path, "0::/\n", "")) == "there is no memory controller"
