"""Two Ray nodes in network namespaces of their own, joined by a pair of virtual cables. One is cut off in mid-run.

    python scripts/two_ray_nodes.py          (Linux, as root; about two minutes)

    node A   10.231.7.1   head, driver, training, reward, one rollout instance
    node B   10.231.7.2   one rollout instance; memory files of its own, so weights and samples come over the cable

1. The run begins; both instances generate.
2. The cable is cut. Ray notices that B is gone, the run hears of the lost instance, and goes on with the other.
3. The cable is mended and `ray start` is given on B again. The waiting instance starts there, pulls and generates.

Prints what happened when, and ends with status 1 if anything did not happen. Touches only namespaces that it has made.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tailrace.core import events as ev
from tailrace.core.journal import Entry
from tailrace.observe.journal.journal_file import read

BIN = Path(sys.executable).parent
HEAD_IP, OTHER_IP, PORT = "10.231.7.1", "10.231.7.2", 6379
LIMIT_S = 180.0
START_ATTEMPTS = 3
"""On a busy machine `ray start` may fail, because Ray gives its own processes half a minute to start."""
ENV = {
    # Ray takes half a minute to give a node up unless told otherwise.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_AUTH_MODE": "disabled",
    "OMP_NUM_THREADS": "1",
}
SETTINGS = {
    "runtime": "ray",
    "ray.address": f"{HEAD_IP}:{PORT}",
    "ray.training.custom": "{head: 0.1}",
    "ray.reward.custom": "{head: 0.1}",
    "ray.reward.cpus": 1,
    "rollout.num_instances": 2,
    "rollout.n_samples_per_prompt": 4,
    "rollout.max_response_length": 64,
    "rollout.threads": 1,
    "trainer.threads": 1,
    "schedule.rollout_batch_size": 8,
    "schedule.max_steps": 100_000,
    "eval": "[]",
    "eval_interval": "null",
    "report": "false",
}


class Cable:
    """Two namespaces and the cable between them."""

    def __init__(self) -> None:
        number = os.getpid()
        self.a, self.b = f"tailrace-a-{number}", f"tailrace-b-{number}"
        self.end_a, self.end_b = f"tra{number}", f"trb{number}"

    def lay(self) -> None:
        for name in (self.a, self.b):
            _do("ip", "netns", "add", name)
        _do("ip", "link", "add", self.end_a, "netns", self.a, "type", "veth", "peer", self.end_b, "netns", self.b)
        for name, end, address in ((self.a, self.end_a, HEAD_IP), (self.b, self.end_b, OTHER_IP)):
            _do("ip", "-n", name, "addr", "add", f"{address}/30", "dev", end)
            _do("ip", "-n", name, "link", "set", end, "up")
            _do("ip", "-n", name, "link", "set", "lo", "up")

    def cut(self) -> None:
        _do("ip", "-n", self.b, "link", "set", self.end_b, "down")

    def mend(self) -> None:
        _do("ip", "-n", self.b, "link", "set", self.end_b, "up")

    def remove(self) -> None:
        for name in (self.a, self.b):
            subprocess.run(["ip", "netns", "del", name], check=False)


def _do(*command: str) -> None:
    subprocess.run(command, check=True)


@contextmanager
def ray_node(namespace: str, folder: Path, *options: str, private: tuple[str, ...] = ()) -> Iterator[None]:
    """`ray start OPTIONS` in a namespace, for the time of the context. ``private``: folders of its own, in memory."""
    mounts = "".join(f"mkdir -p {path} && mount -t tmpfs tmpfs {path} && " for path in private)
    start = " ".join([str(BIN / "ray"), "start", "--block", "--object-store-memory=200000000", *options])
    command = ["ip", "netns", "exec", namespace, "sh", "-c", mounts + "exec " + start]
    log = folder / f"{namespace}.log"
    for _ in range(START_ATTEMPTS):
        with log.open("ab") as output:
            begins_at = output.tell()
            process = subprocess.Popen(
                command, env=os.environ | ENV, stdout=output, stderr=output, start_new_session=True
            )
        if _has_started(process, log, begins_at):
            break
    else:
        raise SystemExit(f"`ray start` failed {START_ATTEMPTS} times; see {log}")
    try:
        yield
    finally:
        process.terminate()  # `ray start --block` then ends what it has started
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _has_started(process: subprocess.Popen[bytes], log: Path, begins_at: int) -> bool:
    """Wait until Ray runs; return False if `ray start` ended instead."""
    while process.poll() is None:
        if b"Ray runtime started" in log.read_bytes()[begins_at:]:
            return True
        time.sleep(0.2)
    return False


class Run:
    """The run under test, and its journal."""

    def __init__(self, namespace: str, folder: Path) -> None:
        self.output = folder / "run"
        self._began = time.monotonic()
        flags = [part for name, value in SETTINGS.items() for part in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "tailrace", "train", "quickstart", "--output_dir", str(self.output), *flags]
        with (folder / "run.log").open("wb") as log:
            self.process = subprocess.Popen(
                ["ip", "netns", "exec", namespace, *command], env=os.environ | ENV, stdout=log, stderr=log
            )

    def entries(self) -> list[Entry]:
        journal = self.output / "journal.jsonl"
        return [entry for _, entry in read(journal)] if journal.exists() else []

    def wait_for(self, what: str, has_come: Callable[[list[Entry]], bool]) -> list[Entry]:
        deadline = time.monotonic() + LIMIT_S
        while True:
            entries = self.entries()
            if has_come(entries):
                self.tell(what)
                return entries
            if self.process.poll() is not None:
                raise SystemExit(f"the run ended before: {what}; see {self.output.parent}")
            if time.monotonic() > deadline:
                raise SystemExit(f"this never happened: {what}; see {self.output.parent}")
            time.sleep(0.2)

    def tell(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {what}", flush=True)


def reporters(entries: list[Entry]) -> set[int]:
    return {entry.event.instance for entry in entries if isinstance(entry.event, ev.RolloutReported)}


def losses(entries: list[Entry]) -> list[ev.InstanceLost]:
    return [entry.event for entry in entries if isinstance(entry.event, ev.InstanceLost)]


def num_steps(entries: list[Entry]) -> int:
    return sum(isinstance(entry.event, ev.StepTrained) for entry in entries)


def story(cable: Cable, run: Run, other_node: Callable[[], object], leave_other: Callable[[], None]) -> None:
    run.wait_for(
        "two steps are trained, both instances generate", lambda e: num_steps(e) >= 2 and len(reporters(e)) == 2
    )
    cable.cut()
    run.tell("the cable is cut")
    entries = run.wait_for("the run hears of the lost instance", lambda e: bool(losses(e)))
    [lost] = losses(entries)
    print(f"          {lost.reason}")
    steps = num_steps(entries)
    run.wait_for("five more steps are trained without it", lambda e: num_steps(e) >= steps + 5)
    leave_other()
    cable.mend()
    other_node()
    run.tell("the cable is mended, `ray start` is given on B again")
    num_before = len(run.entries())
    run.wait_for("the instance generates again", lambda e: lost.instance in reporters(e[num_before:]))
    run.process.send_signal(signal.SIGINT)
    run.process.wait(timeout=60)
    run.tell(f"the run is stopped after {num_steps(run.entries())} steps")


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="two-ray-nodes-"))
    rays, cable = str(folder / "ray"), Cable()
    with ExitStack() as stack:
        stack.callback(cable.remove)
        cable.lay()
        head = ("--head", f"--port={PORT}", f"--node-ip-address={HEAD_IP}", "--num-cpus=3", "--include-dashboard=false")
        head += (f"--temp-dir={rays}", "--resources='{\"head\": 1}'")
        stack.enter_context(ray_node(cable.a, folder, *head))
        others = stack.enter_context(ExitStack())

        def other_node() -> None:
            options = (f"--address={HEAD_IP}:{PORT}", f"--node-ip-address={OTHER_IP}", "--num-cpus=1")
            others.enter_context(ray_node(cable.b, folder, *options, private=("/dev/shm", rays)))

        other_node()
        run = Run(cable.a, folder)
        stack.callback(run.process.kill)
        story(cable, run, other_node, others.close)
    print("all of it happened")


if __name__ == "__main__":
    main()
