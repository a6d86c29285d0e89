"""A writer process that makes a channel and publishes version after version, until it is killed.

Its arguments are the name of a kind of channel, the path of the channel file and the first version. It prints a line
when the first version is published.
"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

import torch

from tailrace.core.ids import Version
from tailrace.weights.slots.two_slots import layout_of
from weights.channel_kinds import make_kind, make_writer
from weights.contents import weights

if __name__ == "__main__":
    torch.set_num_threads(1)
    name, path, first = sys.argv[1:]
    kind = make_kind(name)
    writer = make_writer(kind, Path(path), layout_of(weights(0)))
    for version in count(int(first)):
        tensors = [(name, tensor.to(kind.device)) for name, tensor in weights(version % 1000)]
        writer.publish(Version(version), tensors)
        if version == int(first):
            print("published", flush=True)
