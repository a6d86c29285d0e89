"""The rollout worker: one engine, stepped as long as it has work, reporting in batches.

Finished responses are reported within ``_FINISHED_INTERVAL_S``, so that rewards start while others still
generate; unfinished ones every ``progress_interval_s`` or, under load, somewhat less often (``report_interval.py``), so
that a dead worker loses little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import torch

from tailrace.config.model_settings import ModelSettings
from tailrace.core.ids import ResponseId, Version
from tailrace.data.tokenizer import load_tokenizer
from tailrace.engines.contract import Engine, Output, Request, Unservable
from tailrace.engines.native.engine import NativeEngine
from tailrace.engines.native.limits import Decoding, EngineLimits
from tailrace.engines.registry import engine_name
from tailrace.engines.replay.engine import ReplayEngine
from tailrace.engines.replay.saved_rollouts import SavedRollouts
from tailrace.engines.timed.engine import TimedEngine
from tailrace.engines.timed.made_up import MadeUpModel
from tailrace.engines.vllm.start import start_engine as start_vllm
from tailrace.store.model_config import vocabulary_size
from tailrace.weights.channel import VersionNotPublished, WriterLost
from tailrace.workers.arrival import Arrivals
from tailrace.workers.link import Link
from tailrace.workers.messages import (
    Abort,
    Aborted,
    Generate,
    Pull,
    Pulled,
    PullFailed,
    Refused,
    Release,
    Released,
    Report,
    RolloutInit,
    RolloutReady,
    Stop,
)
from tailrace.workers.report_interval import progress_interval_s

_FINISHED_INTERVAL_S = 0.05
"""Seconds between two reports of finished responses: short compared with a reward, long compared with a decode step."""
_NO_CHANNEL = (WriterLost, VersionNotPublished, FileNotFoundError)
"""Errors of a pull whose trainer has ended, or was restarted and has not published yet."""
_FAILED_PULL_PAUSE_S = 0.2
"""Pause after a failed pull. Meanwhile the controller hears that the trainer has ended, and does not ask again."""


class RolloutWorker:
    def __init__(
        self, link: Link, init: RolloutInit, engine: Engine, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._link, self._engine, self._sleep = link, engine, sleep
        self._arrivals = Arrivals(engine, device_of(init.model))
        self._shortest_s, self._num_instances = init.rollout.progress_interval_s, init.rollout.num_instances
        self._unsent: list[Output] = []
        self._sent_at = self._progress_at = time.monotonic()
        self._num_live = 0
        self._submit_s = self._interrupt_s = 0.0
        self._is_released = False

    def run(self) -> None:
        while True:
            message = self._link.receive(0 if self._num_live else None)
            while message is not None:
                self._handle(message)
                message = self._link.receive(0)
            self._step()

    def _handle(self, message: object) -> None:
        match message:
            case Generate(requests=requests):
                self._submit(requests)
            case Stop(responses=responses):
                self._stop(responses)
            case Abort(responses=responses):
                self._abort(responses)
            case Release():
                start = time.monotonic()
                self._engine.release()
                self._is_released = True
                self._link.send(Released(seconds=time.monotonic() - start))
            case Pull():
                self._pull(message)
            case _:
                raise TypeError(f"unknown message {message!r}")

    def _submit(self, requests: Sequence[Request]) -> None:
        start = time.monotonic()
        try:
            self._engine.submit(requests)
        except Unservable as error:
            self._link.send(Refused(reason=str(error)))
        else:
            self._num_live += len(requests)
        self._submit_s += time.monotonic() - start

    def _step(self) -> None:
        if not self._num_live:
            return
        finished = self._engine.step()
        self._num_live -= len(finished)
        self._unsent += finished
        now = time.monotonic()
        if now - self._progress_at >= self._progress_interval_s():
            if self._engine.capabilities.streams_progress:
                self._unsent += self._engine.progress()
            self._progress_at = now
            self._send(now)  # even if empty: during a long prefill the controller must see that the worker is alive
        elif self._unsent and (now - self._sent_at >= _FINISHED_INTERVAL_S or not self._num_live):
            self._send(now)

    def _progress_interval_s(self) -> float:
        return progress_interval_s(self._num_live, shortest_s=self._shortest_s, num_instances=self._num_instances)

    def _send(self, now: float) -> None:
        stats = self._engine.stats()
        report = Report(
            version=stats.version,
            outputs=tuple(self._unsent),
            num_preemptions=stats.num_preemptions,
            submit_s=self._submit_s,
            interrupt_s=self._interrupt_s,
            prefill=stats.prefill,
        )
        self._link.send(report)
        self._unsent, self._sent_at = [], now
        self._submit_s = self._interrupt_s = 0.0

    def _stop(self, responses: tuple[ResponseId, ...]) -> None:
        start = time.monotonic()
        stopped = self._engine.interrupt(responses)
        self._num_live -= len(stopped)
        self._unsent += stopped
        now = time.monotonic()
        self._interrupt_s += now - start
        self._send(now)

    def _abort(self, responses: tuple[ResponseId, ...]) -> None:
        """Abort responses: drop their tokens, and report how many there were."""
        aborted = self._engine.interrupt(responses)
        self._num_live -= len(aborted)
        lengths = dict.fromkeys(responses, 0)
        lengths |= {
            output.segment.response_id: output.segment.end
            for output in (*self._unsent, *aborted)
            if output.segment.response_id in lengths
        }
        self._unsent = [output for output in self._unsent if output.segment.response_id not in lengths]
        self._link.send(Aborted(lengths=tuple(lengths.items())))
        if self._unsent and not self._num_live:  # no step follows that would report them
            self._send(time.monotonic())

    def _pull(self, message: Pull) -> None:
        start = time.monotonic()
        if self._is_released:
            self._engine.restore()
        try:
            arrived = self._arrivals.fetch(message.channel, message.version)
        except _NO_CHANNEL as error:
            self._fail_pull(error)
            return
        arrived.load()
        self._is_released = False
        self._link.send(Pulled(version=arrived.version, seconds=time.monotonic() - start))
        self._log_pull(arrived.version, arrived.num_bytes)

    def _log_pull(self, version: Version, num_bytes: int) -> None:
        memory = ""
        if torch.cuda.is_initialized():  # counts what torch allocates here, see docs/engine.md#memory
            memory = f"; tensors of torch took at most {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB"
        print(f"version {version}: {num_bytes:,} bytes were fetched{memory}", flush=True)

    def _fail_pull(self, error: Exception) -> None:
        """Report a pull that failed, and leave the engine as it was before."""
        if self._is_released:
            self._engine.release()
        self._sleep(_FAILED_PULL_PAUSE_S)
        self._link.send(PullFailed(reason=str(error)))


def device_of(model: ModelSettings) -> torch.device:
    return torch.device(model.device if model.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu")


def native_engine(init: RolloutInit) -> Engine:
    rollout = init.rollout
    if rollout.threads is not None:
        torch.set_num_threads(rollout.threads)
    device = device_of(init.model)
    if device.index is not None:
        torch.cuda.set_device(device)  # Triton and CUDA graphs use the current device
    limits = EngineLimits(
        max_running=rollout.running_limit,
        max_length=init.max_length,
        kv_tokens=rollout.kv_tokens,
        prefill_chunk=rollout.prefill_limit,
    )
    engine = NativeEngine(
        init.checkpoint,
        seed=init.seed,
        device=device,
        dtype=getattr(torch, init.model.dtype),
        limits=limits,
        deterministic=rollout.deterministic,
        decoding=Decoding(rollout.decoding),
        decode_text=_text_decoder(init.checkpoint),
        may_release=init.may_release,
    )
    if engine.decoding_note:
        print(engine.decoding_note, flush=True)
    return engine


def replay_engine(init: RolloutInit) -> Engine:
    assert init.rollout.from_run is not None
    return ReplayEngine(SavedRollouts.open(init.rollout.from_run).find, max_running=init.rollout.running_limit)


def timed_engine(init: RolloutInit) -> Engine:
    model = MadeUpModel(vocabulary_size(init.checkpoint), seed=init.seed, decode_text=_text_decoder(init.checkpoint))
    return TimedEngine(model, init.rollout.costs, max_running=init.rollout.running_limit)


def vllm_engine(init: RolloutInit) -> Engine:
    return start_vllm(
        init.checkpoint,
        model=init.model,
        rollout=init.rollout,
        device=device_of(init.model),
        max_length=init.max_length,
        seed=init.seed,
        may_release=init.may_release,
        decode_text=_text_decoder(init.checkpoint),
    )


STARTERS = {"native": native_engine, "vllm": vllm_engine, "timed": timed_engine, "replay": replay_engine}
"""Starts each engine of ``engines/registry.py``."""


def make_engine(init: RolloutInit) -> Engine:
    return STARTERS[engine_name(init.rollout)](init)


def _text_decoder(checkpoint: Path) -> Callable[[Sequence[int]], str]:
    """Return a function that decodes tokens, to search for stop strings. It loads the tokenizer when first called."""
    tokenizer = cache(lambda: load_tokenizer(checkpoint))

    def decode(tokens: Sequence[int]) -> str:
        return str(tokenizer().decode(tokens))

    return decode


def serve(link: Link, init: RolloutInit) -> None:
    worker = RolloutWorker(link, init, make_engine(init))
    link.send(RolloutReady(version=Version(0)))
    worker.run()
