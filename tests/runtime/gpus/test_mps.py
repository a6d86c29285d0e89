"""MPS for runs whose rollout and training share a GPU: what is decided, and what a daemon is told.

The program `nvidia-cuda-mps-control` is a script that writes down what it is told. ``tests/gpu`` uses the real one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tailrace.commands.train import train
from tailrace.config.settings import Settings
from tailrace.core import events as ev
from tailrace.observe.journal.journal_file import read
from tailrace.runtime.gpus import found_devices, mps, mps_daemon
from tailrace.runtime.gpus.found_devices import visible_devices
from tailrace.runtime.gpus.mps import Found, SharingChoice, decide, gpu_sharing
from tailrace.runtime.gpus.mps_daemon import MpsDaemon, MpsFailed
from tailrace.runtime.launchers.place import WorkerPlace
from tailrace.runtime.launchers.worker import GROWING_SEGMENTS
from tailrace.sizing.device_plan import demand_of, plan_devices

FAKE = """#!/bin/sh
if [ "$1" = "-d" ]; then
    echo "start $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_LOG_DIRECTORY ${CUDA_VISIBLE_DEVICES-none}" >>"%s"
    %s
    : >"$CUDA_MPS_PIPE_DIRECTORY/control"
else
    read -r told
    echo "$told $CUDA_MPS_PIPE_DIRECTORY" >>"%s"
    %s
    case "$told" in get_server_list) echo 17; echo 18 ;; "get_server_status 18") cat "%s" ;; esac
fi
"""
NOTHING = Found(control=None, pipes="/tmp/nvidia-mps", is_set=False, has_daemon=False, is_answering=False)
ON_CUDA = {"model": {"device": "cuda"}, "schedule": {"mps": "auto"}}


def found(**changes: Any) -> Found:
    return Found(**{name: getattr(NOTHING, name) for name in Found.__slots__} | changes)


@pytest.mark.parametrize(
    ("there", "may_start", "expected"),
    [
        ({"control": "/bin/c"}, True, SharingChoice(is_mps=True, starts=True)),
        ({"control": "/bin/c"}, False, SharingChoice(is_mps=False, reason="schedule.mps is 'never'")),
        ({}, True, SharingChoice(is_mps=False, reason="nvidia-cuda-mps-control is not on PATH")),
        (
            {"control": "/bin/c", "has_daemon": True, "is_answering": True},
            True,
            SharingChoice(is_mps=True, reason="the daemon of /tmp/nvidia-mps"),
        ),
        (
            {"pipes": "/mine", "is_set": True, "has_daemon": True},
            False,
            SharingChoice(is_mps=True, reason="the daemon of /mine"),
        ),
        (
            {"control": "/bin/c", "has_daemon": True},
            True,
            SharingChoice(is_mps=False, reason="the MPS daemon of /tmp/nvidia-mps does not answer"),
        ),
        (
            {"control": "/bin/c", "pipes": "/mine", "is_set": True},
            True,
            SharingChoice(is_mps=False, reason="CUDA_MPS_PIPE_DIRECTORY is /mine, and no MPS daemon is there"),
        ),
    ],
)
def test_a_daemon_that_is_there_is_used_and_one_is_started_only_where_none_is(
    there: dict[str, Any], may_start: bool, expected: SharingChoice
) -> None:
    assert decide(found(**there), may_start=may_start) == expected


class Machine:
    """A machine with CUDA, and with a control program that writes down what it is told."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.record, self._bin, self._monkeypatch = folder / "told", folder / "bin", monkeypatch
        self.status = folder / "status"
        self.status.write_text("ACTIVE\n")
        self._bin.mkdir()
        self.install()
        for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_CLIENT_PRIORITY", "CUDA_VISIBLE_DEVICES"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("PATH", f"{self._bin}:{os.environ['PATH']}")
        monkeypatch.setattr(mps, "_DEFAULT_PIPES", str(folder / "default"))
        self.set_probe("true")

    def install(self, *, on_start: str = ":", on_ask: str = ":") -> None:
        path = self._bin / mps.CONTROL
        path.write_text(FAKE % (self.record, on_start, self.record, on_ask, self.status))
        path.chmod(0o755)

    def uninstall(self) -> None:
        (self._bin / mps.CONTROL).unlink()

    def set_probe(self, *command: str) -> None:
        self._monkeypatch.setattr(mps_daemon, "_PROBE", command)

    def told(self) -> list[list[str]]:
        return [line.split() for line in self.record.read_text().splitlines()] if self.record.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def share(
    given: dict[str, Any],
    do: Callable[[mps.GpuSharing], None] = lambda sharing: None,
    *,
    trains: bool = True,
    num_devices: int = 1,
) -> list[str]:
    """The lines that were said on a machine with so many GPUs."""
    said: list[str] = []
    settings = Settings.model_validate(given)
    devices = visible_devices(settings.model.device, count=num_devices, environ={}) if is_cuda(given) else ()
    plan = plan_devices(demand_of(settings, trains=trains), devices)
    with gpu_sharing(settings, plan, say=said.append) as sharing:
        do(sharing)
    return said


def is_cuda(given: dict[str, Any]) -> bool:
    return found_devices.is_cuda(given["model"]["device"])


def test_a_run_starts_a_daemon_of_its_own_and_ends_it(machine: Machine) -> None:
    seen: list[mps.GpuSharing] = []
    assert share(ON_CUDA, seen.append) == ["rollout and training share the GPU with MPS"]
    [[start, pipes, logs, _], [quit_, same]] = machine.told()
    assert (start, quit_, same) == ("start", "quit", pipes)
    assert len(pipes) < 80
    assert not Path(pipes).parent.exists()
    common = {"CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_LOG_DIRECTORY": logs}
    assert seen[0].rollout == {**common, "CUDA_MPS_CLIENT_PRIORITY": "0"}
    assert seen[0].training == {**common, "CUDA_MPS_CLIENT_PRIORITY": "1"}


def test_the_daemon_runs_while_the_context_is_open(machine: Machine) -> None:
    def check(sharing: mps.GpuSharing) -> None:
        assert len(machine.told()) == 1
        assert Path(sharing.rollout["CUDA_MPS_PIPE_DIRECTORY"], "control").exists()

    share(ON_CUDA, check)


def test_the_daemon_ends_after_a_failure_too(machine: Machine) -> None:
    def fail(sharing: mps.GpuSharing) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        share(ON_CUDA, fail)
    assert [words[0] for words in machine.told()] == ["start", "quit"]


@pytest.mark.parametrize(
    "given",
    [
        {"model": {"device": "cpu"}},
        ON_CUDA | {"schedule": {"placement": "colocated", "mps": "auto"}},
        ON_CUDA | {"rollout": {"from_run": "elsewhere"}},
        ON_CUDA | {"schedule": {"placement": "disaggregated", "mps": "auto"}},
    ],
)
def test_where_nothing_is_shared_nothing_is_started_or_said(machine: Machine, given: dict[str, Any]) -> None:
    check = lambda sharing: None if sharing == mps.GpuSharing() else pytest.fail(str(sharing))  # noqa: E731
    assert share(given, check, num_devices=2) == []
    assert machine.told() == []


def test_a_run_that_does_not_train_shares_nothing(machine: Machine) -> None:
    assert share(ON_CUDA, trains=False) == []
    assert machine.told() == []


def judged(placement: str = "shared", **sections: Any) -> dict[str, Any]:
    judge = {"model": "somewhere/judge", "placement": placement}
    return {"model": {"device": "cuda"}, "reward": {"functions": ["judge"], "judge": judge}, **sections}


@pytest.mark.parametrize(
    ("schedule", "num_devices", "trains", "who"),
    [
        ("shared", 1, True, "rollout, training and judge"),
        ("colocated", 1, True, "rollout, training and judge"),
        ("disaggregated", 2, True, "rollout and judge"),
        ("shared", 1, False, "rollout and judge"),
    ],
)
def test_a_judge_that_shares_a_gpu_wants_mps_in_every_placement(
    machine: Machine, schedule: str, num_devices: int, trains: bool, who: str
) -> None:
    seen: list[mps.GpuSharing] = []
    given = judged(schedule={"placement": schedule, "mps": "auto"})
    said = share(given, seen.append, trains=trains, num_devices=num_devices)
    assert said == [f"{who} share the GPU with MPS"]
    [sharing] = seen
    priorities = [each.get("CUDA_MPS_CLIENT_PRIORITY") for each in (sharing.rollout, sharing.judge, sharing.training)]
    assert priorities == ["0", "1", "1" if "training" in who else None]
    assert sharing.judge["CUDA_MPS_PIPE_DIRECTORY"] == sharing.rollout["CUDA_MPS_PIPE_DIRECTORY"]
    assert bool(sharing.training) == ("training" in who), "training on GPUs of its own stays outside MPS"


def test_a_judge_beside_training_shares_with_it_alone(machine: Machine) -> None:
    given = judged(rollout={"from_run": "elsewhere"}, schedule={"mps": "auto"})
    assert share(given) == ["training and judge share the GPU with MPS"]


@pytest.mark.parametrize("schedule", ["colocated", "disaggregated"])
def test_a_judge_on_a_gpu_of_its_own_shares_nothing(machine: Machine, schedule: str) -> None:
    given = judged("own", schedule={"placement": schedule, "mps": "auto"})
    assert share(given, num_devices=3) == []
    said = share(judged("own", schedule={"mps": "auto"}), num_devices=2)
    assert said == ["rollout and training share the GPU with MPS"]


def test_without_mps_the_line_names_who_takes_turns(machine: Machine) -> None:
    machine.uninstall()
    given = judged(schedule={"placement": "colocated", "mps": "auto"})
    seen: list[mps.GpuSharing] = []
    assert share(given, seen.append) == [
        "rollout, training and judge share the GPU by time-slicing: nvidia-cuda-mps-control is not on PATH"
    ]
    assert seen == [mps.GpuSharing()]


def test_a_judge_sees_its_device_and_its_memory_grows_in_segments() -> None:
    settings = Settings.model_validate(judged(rollout={"num_instances": 2}))
    plan = plan_devices(demand_of(settings, trains=True), ("4", "7"))
    place = WorkerPlace(launch=_no_launch, sharing=mps.GpuSharing(judge={"A": "b"}), plan=plan)
    assert place.judge_env(0) == {"A": "b", "CUDA_VISIBLE_DEVICES": "4", **GROWING_SEGMENTS}
    on_ray = WorkerPlace(launch=_no_launch, sharing=mps.GpuSharing(), plan=plan, names_devices=False)
    assert on_ray.judge_env(0) == GROWING_SEGMENTS


def _no_launch(*arguments: Any, **named: Any) -> Any:
    raise AssertionError("nothing is started here")


def test_auto_is_no_cuda_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert not found_devices.is_cuda("auto")
    assert found_devices.is_cuda("cuda:1")
    assert not found_devices.is_cuda("cpu")


def test_a_daemon_that_does_not_start_leaves_time_slicing_and_nothing_else(machine: Machine) -> None:
    machine.install(on_start="echo first; echo no permission; exit 1")
    assert share(ON_CUDA, lambda sharing: None if sharing == mps.GpuSharing() else pytest.fail(str(sharing))) == [
        "rollout and training share the GPU by time-slicing: MPS does not work here (no permission)"
    ]
    [[_, pipes, _, _]] = machine.told()
    assert not Path(pipes).parent.exists()


def test_a_daemon_under_which_cuda_does_not_work_is_ended(machine: Machine) -> None:
    machine.set_probe("sh", "-c", "echo cuInit failed with error 805; exit 1")
    assert share(ON_CUDA) == [
        "rollout and training share the GPU by time-slicing: MPS does not work here (cuInit failed with error 805)"
    ]
    assert [words[0] for words in machine.told()] == ["start", "quit"]
    assert not Path(machine.told()[0][1]).parent.exists()


def test_the_probe_fails_without_a_driver(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a driver")
    monkeypatch.undo()
    probed = subprocess.run([*mps_daemon._PROBE, "0"], capture_output=True, text=True)
    assert probed.returncode == 1
    assert "libcuda.so.1" in probed.stderr


def test_a_daemon_that_hangs_is_given_up(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.set_probe("sleep", "1")
    monkeypatch.setattr(mps_daemon, "_START_LIMIT_S", 0.2)
    with pytest.raises(MpsFailed, match="did not start within 0 s"):
        MpsDaemon.start(str(machine._bin / mps.CONTROL), device=0)
    assert [words[0] for words in machine.told()] == ["start", "quit"]


@pytest.mark.parametrize(("visible", "expected"), [("1,2", "none"), ("GPU-1234", "GPU-1234")])
def test_the_server_sees_all_devices_unless_they_are_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, visible: str, expected: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    share(ON_CUDA)
    assert machine.told()[0][3] == expected


def test_a_daemon_of_the_user_is_used_and_left_alone(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pipes = tmp_path / "theirs"
    pipes.mkdir()
    (pipes / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(pipes))
    seen: list[mps.GpuSharing] = []
    assert share(ON_CUDA, seen.append) == [f"rollout and training share the GPU with MPS: the daemon of {pipes}"]
    assert machine.told() == [["get_server_list", str(pipes)]]
    assert seen[0].training == {"CUDA_MPS_CLIENT_PRIORITY": "1"}
    machine.install(on_ask="exit 1")
    assert share(ON_CUDA) == [
        f"rollout and training share the GPU by time-slicing: the MPS daemon of {pipes} does not answer"
    ]


def test_priorities_of_the_user_are_kept(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_CLIENT_PRIORITY", "1")
    seen: list[mps.GpuSharing] = []
    share(ON_CUDA, seen.append)
    assert seen[0].rollout == seen[0].training
    assert "CUDA_MPS_CLIENT_PRIORITY" not in seen[0].rollout


def test_never_starts_none_and_a_missing_program_is_said(machine: Machine) -> None:
    share(ON_CUDA | {"schedule": {"mps": "never"}})
    machine.uninstall()
    assert share(ON_CUDA) == [
        "rollout and training share the GPU by time-slicing: nvidia-cuda-mps-control is not on PATH"
    ]
    assert machine.told() == []


KILLED = """
import os, signal, sys
from tailrace.runtime.gpus import mps_daemon
mps_daemon._PROBE = ("true",)
daemon = mps_daemon.MpsDaemon.start(sys.argv[1], device=0)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_daemon_ends_when_its_controller_is_killed(machine: Machine) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(machine._bin / mps.CONTROL)], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 20
    while len(machine.told()) < 2 or Path(machine.told()[0][1]).parent.exists():
        assert time.monotonic() < deadline, machine.told()
        time.sleep(0.01)
    assert [words[0] for words in machine.told()] == ["start", "quit"]


def test_a_failed_server_is_noticed(machine: Machine) -> None:
    def check(sharing: mps.GpuSharing) -> None:
        assert sharing.is_faulty is not None
        assert not sharing.is_faulty()
        machine.status.write_text("FAULT\n")
        assert sharing.is_faulty()
        machine.install(on_ask="exit 1")
        assert not sharing.is_faulty()

    share(ON_CUDA, check)


def workers() -> dict[str, psutil.Process]:
    """The worker processes of a run in this process, by the name of their module."""
    found = {}
    for child in psutil.Process().children(recursive=True):
        if (entry := child.cmdline()[-1]).endswith(":serve"):
            found[entry.removesuffix(":serve").rpartition(".")[2]] = child
    return found


@pytest.mark.slow
@pytest.mark.long
def test_workers_get_the_variables_and_all_are_started_again_after_a_failure_of_the_server(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(found_devices, "find_devices", lambda device: ("7",))
    small = {
        "output_dir": str(tmp_path / "run"),
        "model": {"path": "tiny-arith", "device": "cpu"},
        "data": {"train": "builtin:arith-train"},
        "reward": {"functions": ["exact_match"]},
        "schedule": {"max_steps": 3, "rollout_batch_size": 2, "mps": "auto"},
        "rollout": {"n_samples_per_prompt": 2, "max_response_length": 32, "threads": 1},
        "trainer": {"threads": 1},
        "report": False,
    }
    priorities: dict[str, str | None] = {}
    devices: dict[str, str | None] = {}

    def say(line: str) -> None:
        if line.startswith("step 1") and not priorities:
            found = workers()
            priorities.update({name: child.environ().get("CUDA_MPS_CLIENT_PRIORITY") for name, child in found.items()})
            devices.update({name: child.environ().get("CUDA_VISIBLE_DEVICES") for name, child in found.items()})
            machine.status.write_text("FAULT\n")
            found["rollout_worker"].kill()
        if "MPS" in line:
            machine.status.write_text("ACTIVE\n")

    result = train(Settings.model_validate(small), say=say)
    assert result.is_complete
    assert priorities == {"rollout_worker": "0", "training_worker": "1", "reward_worker": None}
    assert devices == {"rollout_worker": "7", "training_worker": "7", "reward_worker": None}
    events = [type(entry.event) for _, entry in read(tmp_path / "run" / "journal.jsonl")]
    assert events.count(ev.InstanceLost) == 1
    assert events.count(ev.TrainerLost) == 1
    assert [words[0] for words in (machine.told()[0], machine.told()[-1])] == ["start", "quit"]
