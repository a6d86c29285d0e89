"""The embedded rollout engine: continuous batching in the caller's process.

A step is: the batcher's plan (admission, preemption, growth), prefill, and decoding of every ready sequence: one token
in plain torch, or several over a paged KV cache (``runner.py``). All work happens inside calls: there are no threads.
``docs/engine.md`` explains the parts; ``engines/contract.py`` says what the engine promises.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from tailrace.core.ids import ResponseId, Version
from tailrace.core.responses.response import Finish
from tailrace.engines.contract import Output, Request, Stats, Unsupported
from tailrace.engines.native.architecture import read_architecture
from tailrace.engines.native.capabilities import CAPABILITIES
from tailrace.engines.native.checkpoint import CheckpointTensors
from tailrace.engines.native.endings import Ending, Endings
from tailrace.engines.native.layout import engine_layout
from tailrace.engines.native.limits import Decoding, EngineLimits
from tailrace.engines.native.randomness import stream_key
from tailrace.engines.native.runner import Gained
from tailrace.engines.native.runner_choice import choose_runner
from tailrace.engines.native.sequences import LiveRequest, SlotTable
from tailrace.engines.native.step_plan import Plan, Ticket
from tailrace.engines.native.stops import StopTable
from tailrace.engines.request_checks import RequestLimits, refuse_while_live
from tailrace.engines.stop_strings import DecodeText
from tailrace.weights.sharding.table import Holding

INITIAL_VERSION = Version(0)


class NativeEngine:
    def __init__(
        self,
        checkpoint: Path,
        *,
        seed: int,
        limits: EngineLimits,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        deterministic: bool = False,
        decoding: Decoding = Decoding.AUTO,
        decode_text: DecodeText | None = None,
        may_release: bool = False,
        version: Version = INITIAL_VERSION,
    ) -> None:
        self.architecture = read_architecture(checkpoint)
        self.architecture.check_length(limits.max_length)
        self.limits = limits
        self._seed = seed
        self._device, self._dtype = torch.device(device), dtype
        self._request_limits = RequestLimits(
            max_length=limits.max_length,
            vocab_size=self.architecture.vocab_size,
            finds_stop_strings=decode_text is not None,
        )
        self._table = SlotTable(limits.max_running, limits.max_length)
        with torch.inference_mode():
            chosen = choose_runner(
                self.architecture,
                limits,
                self._table,
                device=self._device,
                dtype=dtype,
                deterministic=deterministic,
                decoding=decoding,
                may_release=may_release,
            )
        self._runner, self._batcher, self._meter = chosen.runner, chosen.batcher, chosen.meter
        self.decoding_note = chosen.note
        """Why ``decoding = "auto"`` is plain although the device is a GPU; otherwise None."""
        self.capabilities = replace(
            CAPABILITIES, tokens_per_step=chosen.tokens_per_step, shares_prompts=chosen.tokens_per_step > 1
        )
        self._stops = StopTable(self.architecture.vocab_size)
        self._endings = Endings(self._batcher, self._table, self._stops, decode_text)
        self._live: dict[ResponseId, LiveRequest] = {}
        self._exhausted: dict[ResponseId, LiveRequest] = {}
        """Requests whose prefix already uses up their budget. They finish in the next step."""
        self._num_with_strings = 0
        """Number of live requests with stop strings."""
        self._ended: dict[ResponseId, Ending] = {}
        """Requests that an interrupt of others found at their end. They finish in the next step."""
        self._version = version
        self._has_weights = self._is_released = False
        self.pull([CheckpointTensors(checkpoint)], version)

    def submit(self, requests: Sequence[Request]) -> None:
        if not self._has_weights:
            raise RuntimeError("the engine has no weights: pull a version first")
        self._request_limits.check(requests, self._live)
        for request in requests:
            name, adapter = request.response_id, request.adapter
            if adapter is not None:
                raise Unsupported(f"{name} names the adapter '{adapter}', but the native engine serves no adapters")
        for request in requests:
            self._accept(request)

    def step(self) -> list[Output]:
        outputs = [self._finish(live, live.request.finish_at_end) for live in list(self._exhausted.values())]
        outputs += self._finish_ended(list(self._ended.values()))
        if not (self._batcher.running or self._batcher.waiting):
            return outputs
        plan = self._batcher.plan()
        with torch.inference_mode():
            if plan.is_changed:
                self._seat(plan)
                self._runner.carry_out(plan)
            gained = self._runner.decode()
        return [*outputs, *self._finish_ended(self._find_endings(gained))]

    def progress(self) -> list[Output]:
        unfinished = [live for name, live in self._live.items() if name not in self._ended]
        outputs = [self._take_output(live, None) for live in unfinished]
        return [output for output in outputs if len(output.segment.tokens)]

    def interrupt(self, responses: Iterable[ResponseId]) -> list[Output]:
        live = [self._live[response] for response in dict.fromkeys(responses) if response in self._live]
        if any(request.is_running for request in live):  # what only waits has no token to wait for
            for ending in self._find_endings(self._runner.drain()):
                self._ended[self._batcher.running[ending.slot].name] = ending
        return [self._interrupt(request) for request in live]

    def abort(self, responses: Iterable[ResponseId]) -> None:
        for response in responses:
            if response in self._live:
                self._release(self._live[response])

    def stats(self) -> Stats:
        return Stats(
            num_running=len(self._batcher.running),
            num_waiting=len(self._batcher.waiting) + len(self._exhausted),
            kv_tokens_used=self._batcher.rows.used_tokens,
            kv_tokens_budget=self._batcher.kv_budget,
            num_preemptions=self._batcher.num_preemptions,
            version=self._version,
            # On a GPU the work goes on after the call has returned, and waiting for it would cost time.
            prefill=self._meter.work if self._device.type == "cpu" and not self.capabilities.shares_prompts else None,
        )

    @property
    def num_prefilled_tokens(self) -> int:
        """Tokens prefilled since the engine started, without padding."""
        return self._batcher.num_prefilled_tokens

    def layout(self) -> tuple[Holding]:
        return (engine_layout(self.architecture, str(self._dtype).removeprefix("torch.")),)

    def pull(self, weights: Sequence[Mapping[str, torch.Tensor]], version: Version) -> None:
        if len(weights) != 1:
            raise ValueError(f"the native engine has one rank, got the weights of {len(weights)}")
        refuse_while_live(f"pull version {version}", self._live)
        if self._is_released:
            raise RuntimeError(f"cannot pull version {version}: the engine's memory is released")
        with torch.inference_mode():
            self._runner.fill(weights[0])
        self._version = version
        self._has_weights = True

    def release(self) -> None:
        refuse_while_live("release memory", self._live)
        if self._is_released:
            return
        self._runner.release()
        self._is_released, self._has_weights = True, False
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def restore(self) -> None:
        if self._is_released:
            with torch.inference_mode():
                self._runner.restore()
            self._is_released = False

    def _accept(self, request: Request) -> None:
        tokens = np.concatenate([request.prompt, request.prefix]).astype(np.int32)
        is_forced = request.forced_length is not None
        end = len(request.prompt) + request.end
        ticket = Ticket(
            name=request.response_id,
            sharing=(request.response_id.group, request.prompt.tobytes()),
            prompt_length=len(request.prompt),
            length=len(tokens),
            end=end,
        )
        live = LiveRequest(
            request=request,
            ticket=ticket,
            key=stream_key(self._seed, request.response_id),
            end=end,
            stop_set=self._stops.register(() if is_forced else request.sampling.stop_token_ids),
            num_reported=len(request.prefix),
            tokens=tokens,
        )
        self._live[request.response_id] = live
        self._num_with_strings += live.has_stop_strings
        if len(tokens) >= live.end:
            self._exhausted[request.response_id] = live
        else:
            self._batcher.enqueue(ticket)

    def _seat(self, plan: Plan) -> None:
        """Move the tokens of preempted requests out of the slot table, and those of admitted requests into it."""
        for preemption in plan.preempted:
            live = self._named(preemption.ticket)
            self._table.save(live, preemption.slot, preemption.ticket.length)
        for ticket in plan.admitted:
            self._table.load(self._named(ticket))

    def _named(self, ticket: Ticket) -> LiveRequest:
        return self._live[ticket.name]

    def _find_endings(self, gained: Gained) -> list[Ending]:
        if not self._num_with_strings:
            return self._endings.find(gained)
        live_of = {slot: self._named(ticket) for slot, ticket in self._batcher.running.items()}
        return self._endings.find_with_strings(
            gained, {s: live for s, live in live_of.items() if live.has_stop_strings}
        )

    def _finish_ended(self, endings: Sequence[Ending]) -> list[Output]:
        outputs = []
        for ending in endings:
            live = self._named(self._batcher.running[ending.slot])
            self._batcher.length[ending.slot] = ending.length
            is_stopped = ending.finish is Finish.STOP
            outputs.append(self._finish(live, Finish.STOP if is_stopped else live.request.finish_at_end))
        return outputs

    def _interrupt(self, live: LiveRequest) -> Output:
        """If the request ended in the replay that was just read, drop its last token. It is generated again on
        resume."""
        if (ending := self._ended.get(live.request.response_id)) is not None:
            self._batcher.length[ending.slot] = ending.length - 1
        return self._finish(live, Finish.INTERRUPTED)

    def _finish(self, live: LiveRequest, finish: Finish) -> Output:
        output = self._take_output(live, finish)
        self._release(live)
        return output

    def _take_output(self, live: LiveRequest, finish: Finish | None) -> Output:
        length = int(self._batcher.length[live.ticket.slot])
        return self._table.take_output(live, length, self._version, finish)

    def _release(self, live: LiveRequest) -> None:
        name = live.request.response_id
        del self._live[name]
        self._ended.pop(name, None)
        if self._exhausted.pop(name, None) is None:
            self._batcher.leave(live.ticket)
        self._num_with_strings -= live.has_stop_strings
