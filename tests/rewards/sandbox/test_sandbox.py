"""Programs and their verdicts, in mode strong where there is bubblewrap and in mode weak."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rewards.sandbox.players import needs_bubblewrap
from tailrace.rewards.sandbox import bubblewrap
from tailrace.rewards.sandbox.cases import CallCase, ProgramLimits, SandboxError, StdinCase, Verdict
from tailrace.rewards.sandbox.sandbox import Mode, Sandbox

LIMITS = ProgramLimits(case_s=60.0, memory_mb=256, output_kb=64, tmp_mb=8)


@pytest.fixture(scope="module", params=[pytest.param(Mode.STRONG, marks=needs_bubblewrap), Mode.WEAK])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    with Sandbox.open(mode=request.param, limits=LIMITS) as opened:
        yield opened


def verdict(sandbox: Sandbox, program: str, stdin: str = "", stdout: str = "") -> Verdict:
    return sandbox.run(program, [StdinCase(stdin=stdin, stdout=stdout)]).verdict


@pytest.mark.parametrize(
    "program",
    [
        "print(sum(map(int, input().split())))",
        "import sys\nprint(sum(map(int, sys.stdin.read().split())))",
        "print(sum(map(int, open(0).read().split())))",
        "print(sum(map(int, open('/dev/stdin').read().split())))",
        "import sys\ndata = sys.stdin.buffer.readline()\nsys.stdout.write(str(sum(map(int, data.split()))))",
        "def main():\n    print(sum(map(int, input().split())))\nif __name__ == '__main__': main()",
        "import threading\nt = threading.Thread(target=lambda: print(sum(map(int, input().split()))))\nt.start()",
        "import atexit\natexit.register(lambda: print(sum(map(int, input().split()))))",
        "print(sum(map(int, input().split())))\nexit()",
        "import os\nos.write(1, str(sum(map(int, input().split()))).encode())\nraise SystemExit",
        "print(reduce(lambda a, b: a + b, map(int, input().split())))",
        "with open('note.txt', 'w') as f: f.write(input())\nprint(sum(map(int, open('note.txt').read().split())))",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(7)'])",
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    a: int\nprint(A(7).a)",
    ],
)
def test_programs_that_read_and_write(sandbox: Sandbox, program: str) -> None:
    assert verdict(sandbox, program, "3 4\n", "7\n") is Verdict.PASSED


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("print(8)", Verdict.WRONG),
        ("", Verdict.WRONG),
        ("print(7)\nraise ValueError", Verdict.CRASHED),
        ("print(7)\nimport sys\nsys.exit(1)", Verdict.CRASHED),
        ("print(7)\nsys.exit('no')", Verdict.CRASHED),
        ("def (", Verdict.CRASHED),
        ("print('\\0')", Verdict.WRONG),
        ("held = bytearray(1 << 40)", Verdict.MEMORY),
        ("print('x' * 100_000)", Verdict.OUTPUT),
    ],
)
def test_programs_that_fail(sandbox: Sandbox, program: str, expected: Verdict) -> None:
    assert verdict(sandbox, program, "3 4\n", "7\n") is expected


@pytest.mark.parametrize(
    ("program", "arguments", "value", "expected"),
    [
        ("def f(a, b): return a + b", (1, 2), 3, Verdict.PASSED),
        ("def f(a, b): return (a, b)", (1, 2), [1, 2], Verdict.PASSED),
        ("class Solution:\n    def f(self, a: List[int]) -> int: return len(a)", ([1, 2],), 2, Verdict.PASSED),
        ("f = lambda text: text[::-1]", ("\u00e4b",), "b\u00e4", Verdict.PASSED),
        ("def f(): return {'a': None}", (), {"a": None}, Verdict.PASSED),
        ("def f(): return {1: 2}", (), {"1": 2}, Verdict.PASSED),
        ("def f():\n    print('noise')\n    return 1", (), 1, Verdict.PASSED),
        ("def f(): return {1, 2}", (), [1, 2], Verdict.WRONG),
        ("def f(): return None", (), 0, Verdict.WRONG),
        ("def g(): return 1", (), 1, Verdict.CRASHED),
        ("def f(a): return a", (), 1, Verdict.CRASHED),
        ("def f():\n    while True: yield 1", (), 1, Verdict.WRONG),
    ],
)
def test_programs_that_define_a_function(
    sandbox: Sandbox, program: str, arguments: tuple[object, ...], value: object, expected: Verdict
) -> None:
    case = CallCase(function="f", arguments=arguments, value=value)
    assert sandbox.run(program, [case]).verdict is expected


def test_each_case_is_a_process_of_its_own_and_the_first_failure_ends_the_rest(sandbox: Sandbox) -> None:
    program = (
        "import sys\nn = int(input())\nsys.seen = getattr(sys, 'seen', 0) + 1\nprint(n if n != 3 else 0, sys.seen)"
    )
    cases = [StdinCase(stdin=f"{n}\n", stdout=f"{n} 1\n") for n in range(5)]
    stopped = sandbox.run(program, cases)
    assert [case.verdict for case in stopped.cases] == [Verdict.PASSED] * 3 + [Verdict.WRONG]
    assert (stopped.num_cases, stopped.num_passed, stopped.verdict) == (5, 3, Verdict.WRONG)
    whole = sandbox.run(program, cases, stop_at_first_failure=False)
    assert [case.verdict is Verdict.PASSED for case in whole.cases] == [True, True, True, False, True]


def test_each_case_has_its_own_limit_and_its_time_is_measured_inside(sandbox: Sandbox) -> None:
    program = "import time\ntime.sleep(float(input()))"
    cases = [StdinCase(stdin="0.3\n", stdout=""), StdinCase(stdin="600\n", stdout="")]
    result = sandbox.run(program, cases, [60.0, 0.2])
    assert [case.verdict for case in result.cases] == [Verdict.PASSED, Verdict.TIME]
    assert result.cases[0].seconds >= 0.3
    assert result.cases[1].seconds >= 0.2


def test_cases_together_have_a_limit_too(sandbox: Sandbox) -> None:
    cases = [StdinCase(stdin="", stdout="")] * 3
    result = sandbox.run("import time\ntime.sleep(600)", cases, stop_at_first_failure=False, total_s=0.5)
    assert [case.verdict for case in result.cases] == [Verdict.TIME] * 3


def test_large_input_and_output_pass_through(sandbox: Sandbox) -> None:
    text = "x" * 1_000_000
    assert verdict(sandbox, "print(len(input()))", text, "1000000") is Verdict.PASSED
    assert verdict(sandbox, "print('y' * 60_000)", "", "y" * 60_000) is Verdict.PASSED


def test_what_a_program_wrote_to_stderr_is_told(sandbox: Sandbox) -> None:
    result = sandbox.run("raise ValueError('why')", [StdinCase(stdin="", stdout="")])
    assert "ValueError: why" in result.cases[0].detail


def test_nothing_is_left_after_many_programs(sandbox: Sandbox) -> None:
    before = sorted(os.listdir("/proc/self/fd")) if sys.platform == "linux" else []
    for _ in range(3):
        sandbox.run("print(1)", [StdinCase(stdin="", stdout="1")] * 3)
    if sys.platform == "linux":
        assert sorted(os.listdir("/proc/self/fd")) == before
        assert Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children").read_text() == ""


def test_programs_can_run_in_threads_at_once() -> None:
    """Each thread has a sandbox of its own, which ends with it."""
    verdicts = []

    def run() -> None:
        with Sandbox.open(mode=Mode.WEAK, limits=LIMITS) as own:
            verdicts.append(verdict(own, "print(1)", "", "1"))

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == [Verdict.PASSED] * 3


@needs_bubblewrap
def test_a_sandbox_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Killed by SIGKILL in the middle of a case: nothing of the sandbox goes on."""
    script = tmp_path / "owner.py"
    script.write_text(
        "from tailrace.rewards.sandbox.cases import StdinCase\n"
        "from tailrace.rewards.sandbox.sandbox import Sandbox\n"
        "box = Sandbox.open()\n"
        "print(box._slot.uid if box._slot else 0, flush=True)\n"
        "box.run('import time; time.sleep(600)', [StdinCase(stdin='', stdout='')], [600.0])\n"
    )
    source = str(Path(bubblewrap.__file__).parents[3])
    owner = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": source})
    assert owner.stdout is not None
    owner.stdout.readline()
    below = wait_for(lambda: len(found := descendants(owner.pid)) >= 3 and found)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    wait_for(lambda: not any(is_running(pid) for pid in below))


@needs_bubblewrap
@pytest.mark.skipif(os.geteuid() != 0, reason="slots belong to root")
def test_two_sandboxes_have_different_users_and_a_slot_is_taken_once() -> None:
    with Sandbox.open() as first, Sandbox.open() as second:
        program = "import os\nprint(os.getuid())"
        uids = [box._slot.uid for box in (first, second) if box._slot is not None]
        assert len(set(uids)) == 2
        for box, uid in zip((first, second), uids, strict=True):
            assert verdict(box, program, "", str(uid)) is Verdict.PASSED
        assert first._slot is not None
        with pytest.raises(SandboxError, match="is taken"):
            Sandbox.open(slot=first._slot.number)


def test_without_bubblewrap_there_is_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    if sys.platform == "linux":
        with pytest.raises(SandboxError, match="apt-get install bubblewrap"):
            Sandbox.open()


@pytest.mark.parametrize(("name", "value"), [("case_s", 0.0), ("memory_mb", 1), ("processes", 0)])
def test_a_limit_that_makes_no_sense_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        ProgramLimits(**{name: value})


def descendants(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        for path in Path(f"/proc/{each}/task").glob("*/children"):
            found += map(int, path.read_text().split())
    return found[1:]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(question, limit_s: float = 60.0):
    until = time.monotonic() + limit_s
    while not (answer := question()):
        assert time.monotonic() < until
        time.sleep(0.02)
    return answer
