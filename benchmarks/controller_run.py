"""A real run of many long responses, and how long its event loop is blocked.

Engine processes replay made-up responses of forced lengths, one token a step; the trainer trains a very small model.
Everything between them is what every run has: messages, payload store, rewards, journal, metrics, checkpoints.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from loop_monitor import LoopMonitor

from tailrace.commands.train import train
from tailrace.config.load import assemble, read_recipe
from tailrace.config.settings import Settings
from tailrace.core import events as ev
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.journal import Entry
from tailrace.core.responses.response import Finish
from tailrace.data.models import resolve_model
from tailrace.observe.journal.journal_file import JournalFile, read
from tailrace.observe.journal.journal_segments import end_of
from tailrace.runtime.inputs.sources import TRAIN_SOURCE, Sources
from tailrace.store.payload_store import PayloadStore
from tailrace.store.segment import Segment

NUM_PROMPTS, GROUP_SIZE, MAX_LENGTH, NUM_STEPS = 128, 8, 2000, 3
BEAT_S = 0.005
MEDIAN, SPREAD = 400.0, 0.9
"""Of the lengths, before they are cut: about one in twenty has all 2,000 tokens."""


class Policy(asyncio.DefaultEventLoopPolicy):
    """Gives every loop a monitor and a heartbeat."""

    def __init__(self, beat_s: float = BEAT_S) -> None:
        super().__init__()
        self._beat_s = beat_s
        self.monitors: list[LoopMonitor] = []
        self.lateness: list[tuple[float, float]] = []
        """(due, seconds late) of each beat: what any other callback would have waited, for whatever reason."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        self.monitors.append(LoopMonitor())
        loop = asyncio.SelectorEventLoop(self.monitors[-1])
        loop.call_soon(self._beat, loop, loop.time())
        return loop

    def _beat(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = loop.time()
        self.lateness.append((due, now - due))
        loop.call_at(now + self._beat_s, self._beat, loop, now + self._beat_s)


class Sampler(threading.Thread):
    """Looks where the loop is while it is blocked: the lines of our own code, by how often they were found."""

    def __init__(self, policy: Policy, thread: int, over_s: float) -> None:
        super().__init__(daemon=True)
        self._policy, self._thread, self._over_s = policy, thread, over_s
        self._is_over = threading.Event()
        self.found: Counter[str] = Counter()

    def run(self) -> None:
        while not self._is_over.wait(0.002):
            since = self._policy.monitors[-1].busy_since if self._policy.monitors else None
            if since is not None and time.monotonic() - since > self._over_s:
                frame = sys._current_frames()[self._thread]
                stack = [f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in traceback.extract_stack(frame)]
                self.found[" < ".join(reversed(stack[-7:]))] += 1

    def stop(self) -> None:
        self._is_over.set()
        self.join()


def measure(folder: Path, *, where: bool = False) -> dict[str, Any]:
    settings = _settings(folder)
    num_tokens = _write_responses(folder / "saved", settings)
    policy = Policy()
    asyncio.set_event_loop_policy(policy)
    sampler = Sampler(policy, threading.get_ident(), over_s=0.005)
    if where:
        sampler.start()
    began, cpu = time.perf_counter(), time.process_time()
    result = train(settings, say=lambda line: print(f"  {line}", flush=True))
    assert result.is_complete, result.reason
    if where:
        sampler.stop()
        for stack, count in sampler.found.most_common(25):
            print(f"{count:6d}  {stack}")
    monitor = max(policy.monitors, key=lambda monitor: monitor.num_turns)
    began_at = policy.lateness[0][0] + _first_report(folder / "run" / "journal.jsonl")
    turns = [turn for turn in monitor.slow if turn.began >= began_at]
    late = sorted(late for due, late in policy.lateness if due >= began_at)
    return {
        "num_steps": NUM_STEPS,
        "responses_per_step": NUM_PROMPTS * GROUP_SIZE,
        "tokens": num_tokens,
        "wall_s": round(time.perf_counter() - began, 1),
        "controller_cpu_s": round(time.process_time() - cpu, 2),
        "loop_cpu_s": round(monitor.cpu_s, 2),
        "longest_blocked_ms": _ms(max((turn.wall_s for turn in turns), default=0.0)),
        "longest_blocked_cpu_ms": _ms(max((turn.cpu_s for turn in turns), default=0.0)),
        "turns_over_20_ms": sum(turn.wall_s > 0.02 for turn in turns),
        "num_turns": monitor.num_turns,
        "callback_late_ms": {
            "p99": _ms(late[len(late) * 99 // 100]),
            "p99.9": _ms(late[len(late) * 999 // 1000]),
            "max": _ms(late[-1]),
        },
        "start_longest_blocked_ms": _ms(max((t.wall_s for t in monitor.slow if t.began < began_at), default=0.0)),
        "journal_bytes_per_step": end_of(folder / "run" / "journal.jsonl") // NUM_STEPS,
        "load_average": round(os.getloadavg()[0], 1),
    }


def _ms(seconds: float) -> float:
    return round(1e3 * seconds, 1)


def _first_report(journal: Path) -> float:
    """Run time of the first report of a response: before it, processes start and nothing waits for the controller."""
    return next(entry.now for _, entry in read(journal) if isinstance(entry.event, ev.RolloutReported))


def _settings(folder: Path) -> Settings:
    given = {
        "output_dir": folder / "run",
        "model.path": str(write_model(folder / "model")),
        "save_interval": 1,
        "report": False,
        "rollout.from_run": str(folder / "saved"),
        "rollout.num_instances": 2,
        "rollout.max_running": 512,
        "rollout.n_samples_per_prompt": GROUP_SIZE,
        "rollout.max_response_length": MAX_LENGTH,
        "schedule.rollout_batch_size": NUM_PROMPTS,
        "schedule.max_steps": NUM_STEPS,
        "reward.workers": 2,
    }
    recipe = read_recipe("quickstart")
    recipe = {name: value for name, value in recipe.items() if name not in ("eval", "eval_interval")}
    return assemble(recipe, given, hint=print)


def write_model(path: Path) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=19,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(resolve_model("tiny-arith") / name, path / name)
    return path


def _write_responses(run: Path, settings: Settings) -> int:
    """A run directory that holds a response for everything the run will ask for."""
    run.mkdir()
    without = settings.model_copy(update={"rollout": settings.rollout.model_copy(update={"from_run": None})})
    sources = Sources.load(without)
    (run / "sources.json").write_text(json.dumps(sources.fingerprints))
    journal, numbers, rng = JournalFile.open(run / "journal.jsonl"), np.random.default_rng(0), random.Random(0)
    journal.append(Entry(now=0.0, event=ev.RunStarted(schedule=sources.schedule), commands=()))
    order = sources.contents[TRAIN_SOURCE].order
    groups = [GroupId(TRAIN_SOURCE, *prompt) for prompt in order.ids(0, 0, NUM_PROMPTS * NUM_STEPS).prompts]
    num_tokens = 0
    with PayloadStore.open(run / "payload") as store:
        for response in (ResponseId(group, member) for group in groups for member in range(GROUP_SIZE)):
            length = min(max(1, round(rng.lognormvariate(np.log(MEDIAN), SPREAD))), MAX_LENGTH)
            num_tokens += length
            tokens = numbers.integers(2, 19, length, dtype=np.int32)
            segment = Segment(
                response_id=response,
                start=0,
                version=Version(0),
                tokens=tokens,
                logprobs=np.full(length, -2.9, np.float32),
                mask=np.ones(length, np.uint8),
            )
            store.append([segment])
            finish = Finish.LENGTH if length == MAX_LENGTH else Finish.STOP
            ended = ev.Finished(response=response, length=length, finish=finish)
            report = ev.RolloutReported(instance=InstanceId(0), version=Version(0), finished=(ended,))
            journal.append(Entry(now=0.0, event=report, commands=()))
    journal.close()
    return num_tokens
