"""Random lives of requests: they arrive in any order, are preempted, interrupted, resumed here or elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random

import numpy as np

from engines.rollouts import responses
from tailrace.core.ids import ResponseId
from tailrace.core.responses.response import Finish
from tailrace.engines.contract import Engine, Output, Request
from tailrace.store.segment import ResponsePayload


class History:
    """Drives one or several engines until every request has its response."""

    def __init__(self, engines: Sequence[Engine], requests: Sequence[Request], random: Random) -> None:
        self._engines, self._random = engines, random
        self._requests = {request.response_id: request for request in requests}
        self._todo = list(requests)
        self._live: list[dict[ResponseId, None]] = [{} for _ in engines]
        self.outputs: list[Output] = []
        self.num_interrupts = 0
        random.shuffle(self._todo)

    def run(self, *, interrupt_probability: float) -> dict[ResponseId, ResponsePayload]:
        while self._todo or any(self._live):
            for engine, live in zip(self._engines, self._live, strict=True):
                self._submit_some(engine, live)
                self._take(engine.step(), live)
                if self._random.random() < 0.2:
                    self._take(engine.progress(), live)
                if live and self._random.random() < interrupt_probability:
                    chosen = self._random.sample(list(live), self._random.randint(1, len(live)))
                    self._take(engine.interrupt(chosen), live)
        return responses(self._requests.values(), self.outputs)

    def _submit_some(self, engine: Engine, live: dict[ResponseId, None]) -> None:
        if self._todo and self._random.random() < 0.4:
            count = self._random.randint(1, len(self._todo))
            batch, self._todo = self._todo[:count], self._todo[count:]
            engine.submit(batch)
            live |= {request.response_id: None for request in batch}

    def _take(self, outputs: list[Output], live: dict[ResponseId, None]) -> None:
        self.outputs += outputs
        for output in outputs:
            response = output.segment.response_id
            if output.finish is not None:
                del live[response]
            if output.finish is Finish.INTERRUPTED:
                self.num_interrupts += 1
                self._todo.append(replace(self._requests[response], prefix=self._tokens_of(response)))

    def _tokens_of(self, response: ResponseId) -> np.ndarray:
        own = [output.segment.tokens for output in self.outputs if output.segment.response_id == response]
        return np.concatenate([self._requests[response].prefix, *own])


def random_history(
    make_engine: Callable[..., Engine],
    requests: Sequence[Request],
    seed: int,
    *,
    kv_tokens: int | None = None,
    max_running: int = 3,
    interrupt_probability: float = 0.0,
) -> tuple[dict[ResponseId, ResponsePayload], int]:
    """The responses, and how often a request was preempted or interrupted on the way."""
    random = Random(seed)
    engines = [
        make_engine(max_running=max_running, kv_tokens=kv_tokens, prefill_chunk=random.choice([8, 64, 512]))
        for _ in range(random.randint(1, 2))
    ]
    history = History(engines, requests, random)
    found = history.run(interrupt_probability=interrupt_probability)
    return found, history.num_interrupts + sum(engine.stats().num_preemptions for engine in engines)


def interrupted_at(
    engine: Engine, requests: Sequence[Request], cuts: Mapping[ResponseId, Sequence[int]]
) -> tuple[dict[ResponseId, ResponsePayload], int]:
    """The responses when each is interrupted and resumed as soon as it has each of these numbers of tokens, and how
    often one was."""
    todo = {request.response_id: sorted(cuts[request.response_id]) for request in requests}
    by_id = {request.response_id: request for request in requests}
    tokens = {request.response_id: request.prefix for request in requests}
    live, outputs, num_interrupts = dict.fromkeys(todo), [], 0
    engine.submit(requests)
    while live:
        due = [response for response in live if todo[response] and len(tokens[response]) >= todo[response][0]]
        new = [*engine.interrupt(due), *engine.step(), *engine.progress()]
        outputs += new
        for output in new:
            response = output.segment.response_id
            tokens[response] = np.concatenate([tokens[response], output.segment.tokens])
            if output.finish is Finish.INTERRUPTED:
                todo[response].pop(0)
                num_interrupts += 1
                engine.submit([replace(by_id[response], prefix=tokens[response])])
            elif output.finish is not None:
                del live[response]
    return responses(requests, outputs), num_interrupts
