"""What does a test case cost in the sandbox, and does anything stay behind after 10,000 of them?

    python benchmarks/sandbox_speed.py --json benchmarks/results/sandbox_speed.json

Harmless programs that read two numbers and print their sum. Three ways, in one run on one core at a time: the sandbox
in mode strong, one for each program; one sandbox for each case; a bare interpreter for each case
(`subprocess.run`, without isolation and limits). CPU seconds are those of this process and of all that it has started.
The interpreter starts without `site` in all of them. Afterwards there must be no more child, descriptor, file of the
programs' user or memory cgroup than before.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tailrace.rewards.sandbox.bubblewrap import find_bubblewrap
from tailrace.rewards.sandbox.cases import StdinCase, Verdict
from tailrace.rewards.sandbox.sandbox import Sandbox

PROGRAM = "a, b = map(int, input().split())\nprint(a + b)\n"


def cases(count: int) -> list[StdinCase]:
    return [StdinCase(stdin=f"{number} {number + 1}\n", stdout=f"{2 * number + 1}\n") for number in range(count)]


def in_sandboxes(sandbox: Sandbox, num_programs: int, num_cases: int) -> None:
    for _ in range(num_programs):
        result = sandbox.run(PROGRAM, cases(num_cases))
        assert result.verdict is Verdict.PASSED, result


def bare(count: int) -> None:
    for case in cases(count):
        command = [sys._base_executable, "-I", "-S", "-c", PROGRAM]
        done = subprocess.run(command, input=case.stdin, capture_output=True, text=True, check=True)
        assert done.stdout == case.stdout


def measure(count: int, work: Callable[[], None]) -> dict[str, float]:
    cpu, wall = cpu_seconds(), time.perf_counter()
    work()
    cpu, wall = cpu_seconds() - cpu, time.perf_counter() - wall
    return {"cases": count, "cases_per_s": count / wall, "cpu_ms_per_case": 1e3 * cpu / count, "wall_s": wall}


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def held(uid: int) -> dict[str, list[str]]:
    """What programs could leave behind."""
    own = f"/proc/{os.getpid()}"
    return {
        "children": Path(f"{own}/task/{os.getpid()}/children").read_text().split(),
        "descriptors": sorted(os.listdir(f"{own}/fd")),
        "processes": [path.name for path in Path("/proc").glob("[0-9]*") if is_of(path, uid)],
        "files": [str(path) for folder in ("/tmp", "/dev/shm") for path in Path(folder).iterdir() if is_of(path, uid)],
        "groups": [str(path) for path in Path("/sys/fs/cgroup").glob(f"**/tailrace-sandbox-{os.getpid()}-*")],
    }


def is_of(path: Path, uid: int) -> bool:
    try:
        return path.lstat().st_uid == uid and path.name != str(os.getpid())
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--cases-per-program", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--sample", type=int, default=300, help="cases of the slower ways")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    version = subprocess.run([find_bubblewrap(), "--version"], capture_output=True, text=True, check=True)
    with Sandbox.open() as sandbox:
        uid = os.geteuid() if sandbox._slot is None else sandbox._slot.uid
        in_sandboxes(sandbox, 2, 2)
        before = held(uid)
        rows: dict[str, dict[str, float]] = {}
        rows["a bare interpreter for each case"] = measure(arguments.sample, lambda: bare(arguments.sample))
        rows["a sandbox for each case"] = measure(arguments.sample, lambda: in_sandboxes(sandbox, arguments.sample, 1))
        for size in arguments.cases_per_program:
            count = arguments.cases // size * size
            rows[f"a sandbox for each program of {size} cases"] = measure(
                count, lambda size=size: in_sandboxes(sandbox, arguments.cases // size, size)
            )
        assert held(uid) == before, (before, held(uid))
        note = sandbox.note
    plain = rows["a bare interpreter for each case"]
    for name, row in rows.items():
        row["speed_beside_bare"] = row["cases_per_s"] / plain["cases_per_s"]
        row["cpu_beside_bare"] = plain["cpu_ms_per_case"] / row["cpu_ms_per_case"]
        print(
            f"{name:48} {row['cases_per_s']:7.1f} cases/s ({row['speed_beside_bare']:.1f}x)"
            f" {row['cpu_ms_per_case']:6.2f} ms CPU ({row['cpu_beside_bare']:.1f}x)"
        )
    print("nothing stayed behind" + (f"; {note}" if note else ""))
    if arguments.json is not None:
        machine = {"machine": platform.machine(), "cpus": os.cpu_count(), "python": platform.python_version()}
        about = machine | {"bubblewrap": version.stdout.strip(), "is_root": os.geteuid() == 0, "note": note}
        arguments.json.write_text(json.dumps({"about": about, "rows": rows, "left_behind": []}, indent=1) + "\n")


if __name__ == "__main__":
    main()
