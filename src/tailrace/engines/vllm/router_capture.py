"""The experts that vLLM chooses, read in its worker while it computes. For model runner V1, which runs on CPUs.

A token is predicted at the last position that its request computes in a step, so only the experts of that position are
kept, with the position. vLLM's own return of experts (``enable_return_routed_experts``) needs a GPU. Both use the same
callback of vLLM's routers.

Where vLLM's inner parts are not as expected, an error says so: wrong rows would look like a mismatch of the models.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from tailrace.store.segment import Routing

Rows = dict[int, Routing]
"""Experts (layers x experts per token) by position in the sequence."""


class CannotCapture(ValueError):
    """The experts of this model cannot be read in this vLLM. The message says why."""


def routed_layers(model: nn.Module) -> list[Any]:
    """vLLM's modules that route tokens to experts, in the order of the layers."""
    found = [module for module in model.modules() if hasattr(module, "router") and hasattr(module, "layer_id")]
    return sorted(found, key=lambda module: int(module.layer_id))


class RouterCapture:
    """Owns the experts of the steps since the last ``take``."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        layers = routed_layers(runner.get_model())
        _check(runner, layers)
        self.num_layers, self.top_k = len(layers), int(layers[0].router.top_k)
        self._step: dict[int, Tensor] = {}
        """Experts of all tokens of the running step, by layer."""
        self._rows: dict[str, Rows] = {}
        for place, layer in enumerate(layers):
            layer.router.set_capture_fn(partial(self._step.__setitem__, place))
        self._execute = runner.execute_model
        runner.execute_model = self._run

    def take(self) -> dict[str, Rows]:
        """Return the experts by name of the request, and forget them."""
        taken, self._rows = self._rows, {}
        return taken

    def _run(self, scheduled: Any, *others: Any, **named: Any) -> Any:
        self._step.clear()
        found = self._execute(scheduled, *others, **named)
        if scheduled.total_num_scheduled_tokens:
            self._keep(scheduled)
        return found

    def _keep(self, scheduled: Any) -> None:
        names = self._runner.input_batch.req_ids
        ends = np.cumsum([scheduled.num_scheduled_tokens[name] for name in names])
        last = self._runner.positions[ends - 1].tolist()
        expected = _last_positions(scheduled)
        if ends[-1] != scheduled.total_num_scheduled_tokens or last != [expected[name] for name in names]:
            raise RuntimeError("vLLM's batch is not laid out as expected; set rollout.return_routing to 'never'")
        if len(self._step) != self.num_layers or any(len(experts) < ends[-1] for experts in self._step.values()):
            raise RuntimeError("vLLM did not tell the experts of every layer; set rollout.return_routing to 'never'")
        rows = np.stack([self._step[layer][ends - 1].numpy() for layer in range(self.num_layers)], axis=1)
        for name, position, experts in zip(names, last, rows.astype(np.int16), strict=True):
            self._rows.setdefault(name, {})[position] = experts


def _last_positions(scheduled: Any) -> dict[str, int]:
    """Last position that each request computes in a step, as the scheduler counts."""
    computed = {request.req_id: request.num_computed_tokens for request in scheduled.scheduled_new_reqs}
    cached = scheduled.scheduled_cached_reqs
    computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    return {name: computed[name] + count - 1 for name, count in scheduled.num_scheduled_tokens.items()}


def _check(runner: Any, layers: list[Any]) -> None:
    if not layers:
        raise CannotCapture("vLLM has no module with a router in this model")
    if not hasattr(runner, "input_batch") or not isinstance(getattr(runner, "positions", None), Tensor):
        raise CannotCapture("this model runner of vLLM keeps its batch in another way")
    for layer in layers:
        if not hasattr(layer.router, "set_capture_fn"):
            raise CannotCapture(f"vLLM's {type(layer.router).__name__} does not tell which experts it chose")
        if layer._quant_method.is_monolithic:
            raise CannotCapture("this vLLM chooses experts inside a kernel that does not tell them")
