"""Change the core (or `cluster/`) in small ways, one at a time, and see whether its tests notice.

    python scripts/mutants.py [--part core|cluster] [--sample N --seed S | --all] [--only TEXT] [--jobs N] [--json FILE]

Every change that `mutations.py` finds in `src/tailrace/core` and its folders is a mutant. The script never writes to
the working tree: each mutant runs in its own process, forked from one that has the test tools loaded, and its module
is compiled from the changed tree. The tests run in stages, quick ones first, up to the first failure; the last stage
runs the random histories. Seeds are fixed. A mutant is killed when a test fails or when it takes much more processor
time than the unchanged core (`timeout`). A mutant with which the tests do not even start is not counted as killed. A
mutant that survives needs a line with a reason in `docs/mutants.md`.
Each result is written to FILE at once; a second run with the same FILE, core and tests skips the mutants in it.

The script exits with 1 if fewer than 85 % (`cluster/`: 80 %) are killed or a survivor has no reason.
"""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
import importlib.util
import json
import os
import platform
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import CodeType
from typing import Any

import hypothesis
import pydantic  # noqa: F401  imported once here, not in every process
import pytest
from mutations import Mutation, Mutations

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
CORE = SOURCE / "tailrace" / "core"
CLUSTER = SOURCE / "tailrace" / "cluster"
REASONS = ROOT / "docs" / "mutants.md"
MIN_KILLED = {"core": 0.85, "cluster": 0.80}
MEMORY_BYTES = 64 << 30
Stage = tuple[str, tuple[str, ...]]
"""The share of the random histories, and the tests."""
QUICK = (
    "fleet_views", "reopened_groups", "rewards", "training_room", "run_room", "fleet_room", "collection_room", "pulls",
    "groups", "fleet", "redundant_responses", "waits", "planning", "codec", "costs", "refusals", "resume",
    "length_classes", "schedule", "fixed_point", "version_cap", "replacements", "growing_fleet", "coordinator",
    "commands", "invariants", "pieces", "commit", "lending", "rounds", "lost_trainer", "ledger", "signs_of_life",
    "failed_pulls", "few_useful_prompts", "resizing", "sizes_view",
)  # fmt: skip
HISTORIES = ("streamed_steps", "any_schedule", "tail_batching", "active_partial", "staleness")
WITHOUT_TORCH = "--ignore=tests/core/test_active_partial.py"
"""Importing torch takes seconds, so only the last stage does it."""
STAGES: tuple[Stage, ...] = (
    ("0", ("-m", "not slow and not long", "tests/policies", *(f"tests/core/test_{name}.py" for name in QUICK))),
    (
        "0.04",
        (
            "-m",
            "not slow and not long",
            "tests/core",
            WITHOUT_TORCH,
            *(f"--ignore=tests/core/test_{name}.py" for name in QUICK),
        ),
    ),
    ("0", ("tests/sim/test_simulation.py", "tests/sim/test_named_schedule.py")),
    ("0", ("-m", "slow", "tests/core", WITHOUT_TORCH)),
    ("0.1", tuple(f"tests/core/test_{name}.py" for name in HISTORIES)),
)
CLUSTER_SLOW = tuple(
    f"tests/cluster/{name}.py"
    for name in ("arbitration/test_properties", "arbitration/test_sharing", "planning/test_ranking")
)
CLUSTER_HISTORIES = "tests/cluster/test_any_history.py"
CLUSTER_STAGES: tuple[Stage, ...] = (
    ("0", ("tests/cluster", *(f"--ignore={file}" for file in (*CLUSTER_SLOW, CLUSTER_HISTORIES)))),
    ("0", CLUSTER_SLOW),
    ("0.1", (CLUSTER_HISTORIES,)),
    ("0", ("tests/sim/cluster",)),
)
PARTS = {"core": (CORE, STAGES), "cluster": (CLUSTER, CLUSTER_STAGES)}
DEPENDS_ON = {
    "core": ("src/tailrace", "tests/core", "tests/policies", "tests/sim", "scripts"),
    "cluster": (
        "src/tailrace/core",
        "src/tailrace/cluster",
        "src/tailrace/sim",
        "tests/cluster",
        "tests/sim",
        "scripts",
    ),
}
"""Folders whose files decide what becomes of a mutant."""
PACKAGES = {"torch": "tests/core/test_active_partial.py", "yaml": "tests/sim"}
"""Tests that need a package which may be missing where only the core is tested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    number: int
    file: Path
    mutation: Mutation | None
    """None: nothing is changed."""
    stage: int = 0
    seconds: float = 0.0


Row = dict[str, Any]
"""One mutant and what became of it, as the result file holds it."""


class Changed(importlib.machinery.SourceFileLoader):
    """Finds and loads one module of the core, from the tree that was changed."""

    def __init__(self, file: Path, tree: ast.Module) -> None:
        super().__init__(module_name(file), str(file))
        self._tree = tree

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        is_mine = fullname == self.name
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self) if is_mine else None

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._tree, self.path, "exec")


def module_name(file: Path) -> str:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Report:
    """Writes the name of the first failure to a file, or why there were no tests."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self._path.exists():
            self._path.write_text(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self._path.exists():
            self._path.write_text(report.nodeid)


class Laboratory:
    """Runs jobs in forked processes, a few at a time, each up to its limit of processor time."""

    def __init__(self, folder: Path, stages: Sequence[Stage], workers: int, directory: Path) -> None:
        self._folder, self._stages, self._workers, self._directory = folder, stages, workers, directory
        self._running: dict[int, Job] = {}
        self._limits = [0] * len(stages)

    def calibrate(self) -> list[float]:
        """Processor seconds of the unchanged core, which must pass; they set the limits."""
        waiting = list(range(len(self._stages)))
        seconds = [0.0] * len(self._stages)
        while waiting or self._running:
            while waiting and len(self._running) < self._workers:
                stage = waiting.pop()
                self._start(Job(number=-stage, file=self._folder / "__init__.py", mutation=None, stage=stage))
            pid, status, usage = os.wait4(-1, 0)
            job = self._running.pop(pid)
            if status:
                raise SystemExit(self._report(job, "log").read_text() + "the tests fail without any change")
            seconds[job.stage] = round(usage.ru_utime + usage.ru_stime, 1)
        self._limits = [int(3 * number + 10) for number in seconds]
        return seconds

    def run(self, jobs: Sequence[Job], until: float) -> Iterator[Row]:
        waiting = list(reversed(jobs))
        while waiting or self._running:
            if time.monotonic() > until:
                waiting = [job for job in waiting if job.stage]  # what has begun comes to its end
            while waiting and len(self._running) < self._workers:
                self._start(waiting.pop())
            if not self._running:
                return  # the time is up
            pid, status, usage = os.wait4(-1, 0)
            job = self._running.pop(pid)
            job = replace(job, seconds=job.seconds + usage.ru_utime + usage.ru_stime)
            if status == 0 and job.stage + 1 < len(self._stages):
                waiting.append(replace(job, stage=job.stage + 1))
            elif status == 0:
                yield row(job, "survived", "")
            elif os.WIFSIGNALED(status):
                yield row(job, "timeout", f"limit of {self._limits[job.stage]} s of processor time")
            elif self._report(job).exists():
                yield row(job, "killed", self._report(job).read_text())
            else:
                yield row(job, "not started", "the tests did not start")

    def _start(self, job: Job) -> None:
        self._report(job).unlink(missing_ok=True)
        pid = os.fork()
        if pid:
            self._running[pid] = job
            return
        code = 70
        try:
            code = self._test(job)
        except BaseException:  # noqa: BLE001  whatever it is, this process must not go on as its parent
            traceback.print_exc()
        finally:
            os._exit(code)

    def _test(self, job: Job) -> int:
        """In the forked process: the exit code of the tests."""
        os.chdir(ROOT)
        log = os.open(self._report(job, "log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        limit = self._limits[job.stage] or resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if job.mutation is not None:
            job.mutation.apply()
        tree = ast.parse(job.file.read_text()) if job.mutation is None else job.mutation.tree
        sys.meta_path.insert(0, Changed(job.file, tree))
        share, tests = self._stages[job.stage]
        os.environ |= {"TAILRACE_HISTORIES": share, "TAILRACE_SHRINKS": "0", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        options = ["-x", "-p", "no:cacheprovider", "-p", "pytest_timeout", "-o", "timeout=0"]  # the mark must be known
        return int(pytest.main([*options, *tests], plugins=[Report(self._report(job))]))

    def _report(self, job: Job, kind: str = "failure") -> Path:
        return self._directory / f"{job.number}.{kind}"


def row(job: Job, status: str, by: str) -> Row:
    found = job.mutation
    assert found is not None
    place = {
        "number": job.number,
        "file": "/".join(job.file.relative_to(SOURCE).parts[2:]),
        "line": found.line,
        "where": found.where,
    }
    change = {"operator": found.operator, "before": found.before, "after": found.after}
    return {**place, **change, "status": status, "by": by, "seconds": round(job.seconds, 1)}


def name_of(found: Row) -> str:
    """How `docs/mutants.md` names a mutant."""
    return f"`{found['file']}` `{found['where']}`: `{found['before']}` -> `{found['after']}`"


def all_jobs(folder: Path = CORE) -> tuple[list[Job], Counter[str]]:
    jobs: list[Job] = []
    skipped: Counter[str] = Counter()
    for file in sorted(folder.rglob("*.py")):
        mutations = Mutations(ast.parse(file.read_text()))
        skipped += mutations.skipped
        jobs += [Job(number=len(jobs) + index, file=file, mutation=m) for index, m in enumerate(mutations.found, 1)]
    return jobs, skipped


def main() -> None:
    options = parse()
    sys.path.insert(0, str(ROOT / "src"))
    # A shorter example of a failure is of no use here, and a busy machine must not kill mutants.
    phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None, deadline=None, phases=phases)
    hypothesis.settings.load_profile("mutants")
    folder = PARTS[options.part][0]
    jobs, skipped = all_jobs(folder)
    figures: dict[str, Any] = {
        "python": platform.python_version(),
        "fingerprint": fingerprint(options.part),
        "num_mutants": len(jobs),
    }
    figures["skipped"] = skipped
    chosen = [job for job in jobs if options.only in name_of(row(job, "", ""))]
    if not options.all and options.sample < len(chosen):
        chosen = random.Random(options.seed).sample(chosen, options.sample)
    stages = [("1", tuple(options.tests))] if options.tests else default_stages(options.part)[: options.stages]
    without = tuple(f"--deselect={test}" for test in options.without)
    stages = [(share, (*tests, *without)) for share, tests in stages]
    figures["stages"] = [f"{share} {' '.join(tests)}" for share, tests in stages]
    rows = known(options.json, figures)
    new = [job for job in chosen if job.number not in rows]
    with tempfile.TemporaryDirectory() as directory:
        laboratory = Laboratory(folder, stages, options.jobs, Path(directory))
        print(f"{len(new)} of {len(jobs)} mutants; " + "; ".join(figures["stages"]), flush=True)
        print(f"the unchanged core takes {laboratory.calibrate()} s of processor time", flush=True)
        for found in laboratory.run(new, time.monotonic() + 60 * options.minutes):
            rows[found["number"]] = found
            save(options.json, figures, rows)
            print(f"{len(rows)} {found['status']} {name_of(found)} {found['by']}", flush=True)
    chosen_rows = [rows[job.number] for job in chosen if job.number in rows]
    sys.exit(judge(chosen_rows, len(chosen) - len(chosen_rows), MIN_KILLED[options.part]))


def save(file: Path | None, figures: dict[str, Any], rows: dict[int, Row]) -> None:
    """Write all results again: a run that is stopped loses only the mutants in progress."""
    if file is not None:
        ordered = [rows[number] for number in sorted(rows)]
        statuses = Counter(found["status"] for found in ordered)
        lines = ",\n".join(json.dumps(found) for found in ordered)
        head = json.dumps({**figures, "statuses": statuses}, indent=1)[:-2]
        partial = file.with_suffix(".partial")
        partial.write_text(f'{head},\n "mutants": [\n{lines}\n]}}\n')
        partial.replace(file)


def default_stages(part: str) -> list[Stage]:
    """The stages without the tests whose packages are missing."""
    missing = tuple(tests for package, tests in PACKAGES.items() if importlib.util.find_spec(package) is None)
    stages = [(share, tuple(test for test in tests if not test.startswith(missing))) for share, tests in PARTS[part][1]]
    return [(share, tests) for share, tests in stages if any(test.startswith("tests/") for test in tests)]


def fingerprint(part: str) -> str:
    """Of everything a result depends on."""
    files = [file for folder in DEPENDS_ON[part] for file in sorted((ROOT / folder).rglob("*.py"))]
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def known(file: Path | None, figures: dict[str, Any]) -> dict[int, Row]:
    if file is None or not file.exists():
        return {}
    data = json.loads(file.read_text())
    is_same = all(data.get(key) == figures[key] for key in ("fingerprint", "stages"))
    return {found["number"]: found for found in data["mutants"]} if is_same else {}


def judge(rows: Sequence[Row], num_missing: int, min_killed: float = MIN_KILLED["core"]) -> int:
    survivors = [found for found in rows if found["status"] == "survived"]
    reasons = REASONS.read_text() if REASONS.exists() else ""
    unexplained = [found for found in survivors if name_of(found) not in reasons]
    num_killed = sum(found["status"] in ("killed", "timeout") for found in rows)
    share = num_killed / max(1, len(rows))
    print(f"{share:.1%} of {len(rows)} killed; {len(survivors)} survived, {len(unexplained)} of them without a reason")
    for found in unexplained:
        print(f"* {name_of(found)} (line {found['line']})")
    if num_missing:
        print(f"{num_missing} mutants of the sample were not tried: run again with the same --json")
    return int(share < min_killed or bool(unexplained) or num_missing > 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, default="core", help="what is changed")
    parser.add_argument("--sample", type=int, default=200, help="how many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the sample")
    parser.add_argument("--all", action="store_true", help="every mutant")
    parser.add_argument("--only", default="", help="mutants whose line contains this text")
    parser.add_argument("--tests", nargs="+", default=[], help="run these instead of all that look at the core")
    parser.add_argument("--stages", type=int, default=99, help="run only the first N stages: a quick look")
    parser.add_argument("--without", nargs="+", default=[], help="leave out these tests, for example broken ones")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many mutants run at the same time")
    parser.add_argument("--json", type=Path, help="where the results are kept")
    parser.add_argument("--minutes", type=float, default=1e6, help="after which no other mutant is begun")
    return parser.parse_args()


if __name__ == "__main__":
    main()
