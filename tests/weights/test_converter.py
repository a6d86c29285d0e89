from __future__ import annotations

import torch

from tailrace.weights.converter import join, receive
from tailrace.weights.sharding import Heads, Scheme, holdings
from tailrace.weights.transfer_plan import Slice, Transfer
from weights.models import parameters

META = torch.device("meta")


def test_a_box_is_put_together_on_the_device_of_its_parts() -> None:
    parts = [(((0, 2), (0, 3)), torch.empty(2, 3, device=META)), (((2, 5), (0, 3)), torch.empty(3, 3, device=META))]
    joined = join(((0, 5), (0, 3)), parts)
    assert (joined.device, tuple(joined.shape)) == (META, (5, 3))


def test_tensors_of_a_worker_are_made_on_the_device_of_what_it_receives() -> None:
    heads = Heads(num_query=4, num_kv=2, size=2)
    model = parameters(heads)
    [worker] = holdings(model, heads, Scheme(is_fused=True), side="engine")
    transfers = [Transfer(slice=Slice(p.name, p.box), sender="trainer", receiver=worker.worker) for p in model]
    shapes = {parameter.name: parameter.shape for parameter in model}
    received = receive(worker, transfers, lambda transfer: torch.empty(shapes[transfer.slice.parameter], device=META))
    assert {tensor.device for tensor in received.values()} == {META}
