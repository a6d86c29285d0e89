"""A reader process that pulls some times and compares what it got with a file of expected tensors.

Its arguments are the name of a kind of channel, the path of the channel file and the file of tensors. It prints the
version, whether all bits are equal, and the milliseconds of each pull.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from tailrace.core.ids import Version
from weights.channel_kinds import make_kind

if __name__ == "__main__":
    name, path, file = sys.argv[1:]
    reader, pull_ms = make_kind(name).reader(Path(path)), []
    for _ in range(5):
        start = time.monotonic()
        version, pulled = reader.fetch_whole(Version(0))
        pull_ms.append(round(1e3 * (time.monotonic() - start), 2))
    expected = torch.load(file)
    is_equal = expected.keys() == pulled.keys() and all(
        torch.equal(pulled[name].cpu().view(torch.uint8), tensor.view(torch.uint8)) for name, tensor in expected.items()
    )
    print(json.dumps({"version": version, "is_equal": is_equal, "pull_ms": pull_ms}))
