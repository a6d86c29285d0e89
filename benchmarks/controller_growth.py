"""What a long run of many responses writes and costs: the real core, journal, recorder, store and checkpoints.

Only the workers are simulated, in virtual time: 8 instances generate 256 x 8 responses for 300 s each step and report
as real ones do. What they say is pickled as their processes would; reading it, writing its payload, deciding, recording
and making the tasks for rewards is what is measured. The trainer's own files are left out.
"""

from __future__ import annotations

import pickle
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.coordinator import Coordinator
from tailrace.core.ids import ResponseId, Version
from tailrace.core.journal import Entry
from tailrace.core.schedule import Limits, Schedule
from tailrace.engines.contract import Output
from tailrace.observe import summaries
from tailrace.observe.display.display import PlainDisplay
from tailrace.observe.guarded import Complaints
from tailrace.observe.journal import journal_file
from tailrace.observe.journal.journal_segments import end_of
from tailrace.observe.journal.run_files import RunFiles
from tailrace.observe.sinks import Sinks
from tailrace.runtime.adapters.rollout_intake import reported
from tailrace.runtime.record.checkpoint_adapter import CheckpointAdapter
from tailrace.runtime.record.checkpoint_folder import CheckpointFolder
from tailrace.runtime.record.recorder import Recorder
from tailrace.runtime.record.resume import recall
from tailrace.runtime.record.run_directory import RunDirectory
from tailrace.sim.driver import Agenda, Driver
from tailrace.sim.engine_costs import EngineCosts
from tailrace.sim.instance import InstanceTimes
from tailrace.sim.reward_model import RewardCosts, RewardKind
from tailrace.sim.trainer_model import TrainerCosts
from tailrace.sim.world import World, WorldCosts
from tailrace.store.address import address_of
from tailrace.store.checksums import write_checksums
from tailrace.store.payload_store import PayloadStore
from tailrace.store.segment import Segment
from tailrace.workers.messages import Report
from tailrace.workers.report_interval import progress_interval_s
from tailrace.workers.reward_tasks import SentTokens, StoredTokens, TokenTask

NUM_PROMPTS, GROUP_SIZE, NUM_INSTANCES = 256, 8, 8
STEP_S, TOKENS_PER_S = 300.0, 20.0
PROMPT = "1+2=" * 25
FINISHED_INTERVAL_S, SCORES_TOLD_EVERY_S = 0.05, 0.01


@dataclass(frozen=True)
class EvenLengths:
    """Responses end within the last seconds of a step, so that all of them are in flight for nearly all of it."""

    longest: int = round(STEP_S * TOKENS_PER_S)

    def draw(self, response: ResponseId, version: int) -> int:
        return self.longest - random.Random(str(response)).randrange(200)


@dataclass(slots=True)
class Meter:
    cpu_s: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def running(self, part: str) -> Iterator[None]:
        start = time.process_time()
        try:
            yield
        finally:
            self.cpu_s[part] = self.cpu_s.get(part, 0.0) + time.process_time() - start


class Controller(Driver):
    """Handles events as a real controller does. ``payload_from``: the version from which on responses have tokens,
    reward tasks and the messages they come in; before it, they are only told of."""

    def __init__(self, path: Path, schedule: Schedule, agenda: Agenda, world_of: Any, *, payload_from: int) -> None:
        self.meter, self._payload_from, self._max_steps = Meter(), payload_from, schedule.max_steps
        self.directory = RunDirectory(path)
        for folder in (self.directory.checkpoints, self.directory.logs):
            folder.mkdir(parents=True)
        (path / "lock").touch()
        self.store = PayloadStore.open(self.directory.payload)
        past = recall(journal=self.directory.journal, checkpoint=None, store=self.store, schedule=schedule)
        coordinator = past.coordinator
        display = PlainDisplay(schedule.max_steps, lambda line: None)
        complain = Complaints(self.directory.logs / "observers.log", print)
        self.recorder = Recorder(
            self.directory, past, display=display, sinks=Sinks({}, complain), prediction=None, complain=complain
        )
        self._checkpointing = CheckpointAdapter(
            CheckpointFolder(self.directory.checkpoints, keep=2),
            coordinator=coordinator,
            recorder=self.recorder,
            store=self.store,
            keeps_payload=payload_from == 0,
        )
        self._lengths: dict[ResponseId, int] = {}
        self._scores: list[ev.Scored] = []
        self.num_payload_bytes = 0
        super().__init__(coordinator, world_of(coordinator), agenda)

    @property
    def _has_payload(self) -> bool:
        return self._coordinator.version >= self._payload_from

    def _handle(self, event: ev.Event) -> do.FinishRun | None:
        if isinstance(event, ev.ResponsesScored):
            self._gather(event)
            return None
        if isinstance(event, ev.RolloutReported) and self._has_payload:
            event = self._receive(event)
        return self._decide(event)

    def _decide(self, event: ev.Event) -> do.FinishRun | None:
        self.num_events += 1
        with self.meter.running("decisions"):
            commands = self._coordinator.handle(event, now=round(self._agenda.now, 6))
        with self.meter.running("journal and metrics"):
            self.recorder.record(
                Entry(now=round(self._agenda.now, 6), event=event, commands=tuple(commands), decided_s=1e-4)
            )
        finish = None
        for command in commands:
            match command:
                case do.FinishRun():
                    finish = command
                case do.SetTimer(at=at):
                    self._set_timer(at)
                case do.SaveCheckpoint(version=version):
                    self._save(version)
                    self._world.perform(command)
                case do.Score(responses=responses):
                    self._make_tasks(responses)
                    self._world.perform(command)
                case _:
                    self._world.perform(command)
        return finish

    def _gather(self, event: ev.ResponsesScored) -> None:
        """Scores are told together, as a real run does."""
        if not self._scores:
            self._agenda.after(SCORES_TOLD_EVERY_S, self._tell_scores)
        self._scores += event.scores

    def _tell_scores(self) -> None:
        scores, self._scores = tuple(self._scores), []
        self._decide(ev.ResponsesScored(scores=scores))

    def _receive(self, event: ev.RolloutReported) -> ev.RolloutReported:
        raw = pickle.dumps(self._message(event), protocol=pickle.HIGHEST_PROTOCOL)
        with self.meter.running("messages"):
            message = pickle.loads(raw)
        with self.meter.running("payload"):
            self.store.append(output.segment for output in message.outputs if len(output.segment.tokens))
        with self.meter.running("messages"):
            return replace(reported(event.instance, message), num_preemptions=event.num_preemptions)

    def _message(self, event: ev.RolloutReported) -> Report:
        """What the process of the instance would have sent."""
        outputs = [self._output(part.response, part.length, event.version) for part in event.progressed]
        ends = [(self._output(end.response, end.length, event.version), end.finish) for end in event.finished]
        outputs += [replace(output, finish=finish) for output, finish in ends]
        return Report(
            version=event.version,
            outputs=tuple(outputs),
            num_preemptions=0,
            submit_s=0.0,
            interrupt_s=0.0,
            prefill=None,
        )

    def _output(self, response: ResponseId, length: int, version: Version) -> Output:
        start = self._lengths.get(response, 0)
        self._lengths[response] = length
        count = length - start
        segment = Segment(
            response_id=response,
            start=start,
            version=version,
            tokens=np.full(count, 7, np.int32),
            logprobs=np.full(count, -1.0, np.float32),
            mask=np.ones(count, np.uint8),
        )
        return Output(segment=segment)

    def _make_tasks(self, responses: tuple[ResponseId, ...]) -> None:
        if not self._has_payload:
            return
        with self.meter.running("reward tasks"):
            for response in responses:
                pickle.dumps(self._task(response), protocol=pickle.HIGHEST_PROTOCOL)

    def _task(self, response: ResponseId) -> TokenTask:
        """What the catalogue of a run makes for a reward process."""
        place = StoredTokens(directory=self.store.directory.absolute(), address=address_of(self.store, response))
        return TokenTask(
            response_id=response,
            row={"prompt": PROMPT, "answer": "7"},
            prompt_text=PROMPT,
            prompt=SentTokens(data=np.full(len(PROMPT), 7, np.int32).tobytes()),
            response=place,
            rewards=("exact_match",),
            source="",
        )

    def _save(self, version: Version) -> None:
        if version == self._max_steps:
            return  # the last step is what a resumed run has to catch up with
        with self.meter.running("checkpoints"):
            folder = self._checkpointing.begin(version)
            write_checksums(folder)
            self._checkpointing.complete(version, 0.0)
        self._lengths.clear()  # nothing is in flight when a step of this schedule is saved


def simulate(path: Path, num_steps: int, *, payload_from: int = 0) -> Controller:
    """A run of so many steps, to its end; the last one is not covered by a checkpoint."""
    in_flight = NUM_PROMPTS * GROUP_SIZE
    interval_s = progress_interval_s(in_flight // NUM_INSTANCES, shortest_s=0.25, num_instances=NUM_INSTANCES)
    schedule = Schedule(
        train_source="train",
        batch_size=NUM_PROMPTS,
        group_size=GROUP_SIZE,
        max_steps=num_steps,
        num_instances=NUM_INSTANCES,
        save_interval=1,
        limits=Limits(progress_s=2 * interval_s),  # the simulator reports progress twice within the limit
    )
    costs = WorldCosts(
        engine=EngineCosts(
            k1=0.0, k2=0.0, k3=0.0, k4=1 / TOKENS_PER_S, prefill_s=1e-4, kv_capacity=10**9, prefill_chunk=512
        ),
        instance=InstanceTimes(report_s=FINISHED_INTERVAL_S),
        trainer=TrainerCosts(fixed_s=30.0, token_s=0.0, num_replicas=1, publish_s=1.0, checkpoint_s=1.0),
        reward=RewardCosts(seed=0, num_workers=64, kinds=(RewardKind(median_s=0.05, spread=0.5),)),
        num_prompts=10**6,
        prompt_length=100,
        max_response_length=10**5,
    )
    agenda, lengths = Agenda(), EvenLengths()

    def world_of(coordinator: Coordinator) -> World:
        return World(schedule, costs, lengths, agenda, live=coordinator.live)

    controller = Controller(path, schedule, agenda, world_of, payload_from=payload_from)
    finish = controller.run(ev.RunStarted(schedule=schedule))
    assert finish.is_complete, finish.reason
    controller.num_payload_bytes = sum(path.stat().st_size for path in controller.directory.payload.glob("*.bin"))
    controller.recorder.close()
    controller.store.close()
    return controller


def measure_steps(folder: Path, num_steps: int = 2) -> dict[str, Any]:
    """Bytes and processor seconds of a step. All payload is kept: no checkpoint lets go of any within these few."""
    controller = simulate(folder / "steps", num_steps)
    cpu_s = {name: round(seconds / num_steps, 2) for name, seconds in controller.meter.cpu_s.items()}
    journal = controller.directory.journal
    return {
        "num_steps": num_steps,
        "responses_in_flight": NUM_PROMPTS * GROUP_SIZE,
        "seconds_in_flight": STEP_S,
        "tokens_per_response": round(STEP_S * TOKENS_PER_S),
        "journal_bytes_per_step": end_of(journal) // num_steps,
        "payload_bytes_per_step": controller.num_payload_bytes // num_steps,
        "controller_cpu_s_per_step": cpu_s | {"all": round(sum(cpu_s.values()), 2)},
        "share_of_a_core": round(sum(cpu_s.values()) / STEP_S, 4),
    }


def measure_readers(folder: Path, num_steps: int) -> dict[str, Any]:
    """What a journal of many steps takes on disk, and how long its readers take."""
    run = folder / "long"
    controller = simulate(run, num_steps, payload_from=num_steps - 1)
    summaries.extend(RunFiles.find(run))  # simulated steps pass faster than the process beside a run can follow
    files = [*run.glob("journal*"), *run.glob("summary*")]
    return {
        "num_steps": num_steps,
        "num_events": controller.num_events,
        "journal_bytes": end_of(controller.directory.journal),
        "journal_bytes_on_disk": sum(path.stat().st_size for path in files if path.name.startswith("journal")),
        "summary_bytes": sum(path.stat().st_size for path in files if path.name.startswith("summary")),
        "report": _timed([sys.executable, "-m", "tailrace.cli.main", "report", str(run)]),
        "doctor": _timed([sys.executable, "-m", "tailrace.cli.main", "doctor", str(run)]),
        "resume": _timed([sys.executable, __file__, str(run)]),
    }


def _timed(command: list[str]) -> dict[str, float]:
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(time.perf_counter() - began, 1), "cpu_s": round(cpu_s, 1)}


def resume(run: Path) -> None:
    """All that a run does with its past before its first event."""
    directory = RunDirectory(run)
    with PayloadStore.open(directory.payload) as store:
        checkpoints = CheckpointFolder(directory.checkpoints, keep=2)
        _, first = next(journal_file.read(directory.journal))
        assert isinstance(first.event, ev.RunStarted)
        past = recall(
            journal=directory.journal, checkpoint=checkpoints.latest(), store=store, schedule=first.event.schedule
        )
        assert past.checkpoint_version == past.coordinator.version - 1, "the tail is one step"
        assert past.journal_size == end_of(directory.journal), "all of the tail has its payload"


if __name__ == "__main__":
    resume(Path(sys.argv[1]))
