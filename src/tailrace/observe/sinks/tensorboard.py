"""TensorBoard: event files in ``tensorboard/`` of the run directory, written without torch or TensorFlow."""

from __future__ import annotations

import time

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from tailrace.observe.metrics.rows import Row
from tailrace.observe.sinks.sink import Experiment


class TensorBoard:
    def __init__(self, experiment: Experiment) -> None:
        self._writer = EventFileWriter(str(experiment.directory / "tensorboard"))

    def write(self, row: Row) -> None:
        values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in row.items() if name != "step"]
        self._writer.add_event(Event(wall_time=time.time(), step=row["step"], summary=Summary(value=values)))
        self._writer.flush()  # a step takes seconds, and whoever watches wants to see it

    def close(self) -> None:
        self._writer.close()
