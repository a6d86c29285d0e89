from __future__ import annotations

import weakref

import torch

from tailrace.weights.sharding.converter import gather, join, receive
from tailrace.weights.sharding.table import Heads, Scheme, holdings
from tailrace.weights.sharding.transfer_plan import Slice, Transfer
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


def test_slices_of_a_parameter_are_dropped_before_the_next_one_is_put_together() -> None:
    """So a pulled version is in memory once, and not once in slices and once in pieces."""
    heads = Heads(num_query=4, num_kv=2, size=2)
    model = [parameter for parameter in parameters(heads) if parameter.shape]
    [worker] = holdings(model, heads, Scheme(), side="engine")
    slices, watched = {}, {}
    for parameter in model:
        size = parameter.shape[0]
        for start, stop in ((0, size // 2), (size // 2, size)):  # two senders hold half of the rows each
            one = Slice(parameter.name, ((start, stop), *parameter.box[1:]))
            slices[one] = torch.zeros(stop - start, *parameter.shape[1:])
            watched[one] = weakref.ref(slices[one])
    used: list[Slice] = []
    for _, piece, tensor in gather([worker], slices):
        assert tensor.shape == tuple(stop - start for start, stop in piece.box)
        assert [one for one in used if watched[one]() is not None] == []
        used += [one for one in watched if one.parameter == piece.parameter]
    assert len(used) == len(watched)
    assert not slices
