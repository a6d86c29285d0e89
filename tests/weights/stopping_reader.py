"""A reader process that is stopped, as by SIGSTOP from outside, in the middle of its first pull.

Its arguments are the name of a kind of channel and the path of a channel file. For each of two pulls it prints the
version and the values it got.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from tailrace.core.ids import Version
from weights.channel_kinds import make_kind


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


if __name__ == "__main__":
    name, path = sys.argv[1:]
    reader = make_kind(name).meddled_reader(Path(path), stop)
    for _ in range(2):
        version, weights = reader.fetch_whole(Version(0))
        print(
            json.dumps([version, sorted({value for tensor in weights.values() for value in tensor.view(-1).tolist()})])
        )
