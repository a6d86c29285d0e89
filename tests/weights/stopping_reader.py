"""A reader process that is stopped, as by SIGSTOP from outside, in the middle of its first pull.

Its argument is the path of a channel file. For each of two pulls it prints the version and the values it got.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import numpy as np

from tailrace.core.ids import Version
from tailrace.weights.mapped_file import MappedFile
from tailrace.weights.shared_memory import WeightReader


class StopsInTheMiddle(MappedFile):
    has_stopped = False

    def tensor_bytes(self, generation: int, index: int) -> np.ndarray:
        if index == 1 and not self.has_stopped:  # the first tensor has been copied
            self.has_stopped = True
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().tensor_bytes(generation, index)


if __name__ == "__main__":
    reader = WeightReader(StopsInTheMiddle(Path(sys.argv[1]), writable=False))
    for _ in range(2):
        version, weights = reader.fetch_whole(Version(0))
        print(
            json.dumps([version, sorted({value for tensor in weights.values() for value in tensor.view(-1).tolist()})])
        )
