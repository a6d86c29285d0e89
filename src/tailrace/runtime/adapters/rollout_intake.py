"""What rollout workers say becomes payload and events: tokens are written, then the event that names them is made.

A message may come twice, late, before an earlier one, or from a worker that another one has replaced. So tokens are
written only where they continue a response that their sender was given:

* The sender is the start of the instance that was last given the response. A new attempt is another response.
* Tokens that were written are not written again, however often they are reported.
* Tokens that come before those that they continue are kept until the gap is closed.
* A response that is given again, after a crash or a lost instance, is written from its last journalled token on:
  whatever the store holds beyond it is replaced.

An event names only what is in the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tailrace.core import events as ev
from tailrace.core.commands import Dispatch
from tailrace.core.ids import InstanceId, ResponseId
from tailrace.core.responses.response import Finish
from tailrace.engines.contract import Output
from tailrace.store.payload_store import PayloadStore
from tailrace.workers.messages import (
    Aborted,
    Pulled,
    PullFailed,
    Refused,
    Released,
    Report,
    RolloutReady,
)


class InstanceStart(NamedTuple):
    """One start of an instance."""

    instance: InstanceId
    incarnation: int


@dataclass(slots=True, kw_only=True)
class _Given:
    """A response that a worker generates."""

    sender: InstanceStart
    position: int
    """Where its next tokens start."""
    early: dict[int, Output] = field(default_factory=dict)
    """Tokens that came before those that they continue, by their start."""


class RolloutIntake:
    """Writes the tokens of rollout workers. Use it from one thread."""

    def __init__(self, store: PayloadStore) -> None:
        self._store = store
        self._given: dict[ResponseId, _Given] = {}

    def give(self, sender: InstanceStart, dispatches: Iterable[Dispatch]) -> None:
        """Note that a worker gets these responses, before it does."""
        for dispatch in dispatches:
            self._given[dispatch.response] = _Given(sender=sender, position=dispatch.start)

    def events(self, heard: Sequence[tuple[InstanceStart, object]]) -> list[ev.Event]:
        """Write the tokens of these messages together, and return the events of the messages."""
        outputs: list[Output] = []
        events = [self._event(sender, message, outputs) for sender, message in heard]
        self._store.append(output.segment for output in outputs if len(output.segment.tokens))
        return events

    def _event(self, sender: InstanceStart, message: object, outputs: list[Output]) -> ev.Event:
        """Return the event of a message. What it adds to responses is appended to ``outputs``."""
        if isinstance(message, Refused):
            return ev.StopRequested(reason=message.reason)  # another instance could not serve it either
        if isinstance(message, Report):
            taken, num_refused = self._take(sender, message.outputs)
            outputs += taken
            report = reported(sender.instance, replace(message, outputs=tuple(taken)))
            return replace(report, incarnation=sender.incarnation, num_refused=num_refused)
        if isinstance(message, ev.InstanceLost):
            self._given = {t: given for t, given in self._given.items() if given.sender != sender}
        if isinstance(message, Aborted):
            self._forget(sender, [response for response, _ in message.lengths])
        return replace(_answer(sender.instance, message), incarnation=sender.incarnation)

    def _take(self, sender: InstanceStart, outputs: Iterable[Output]) -> tuple[list[Output], int]:
        """Return the outputs that can be written now, in their order, and how many of these outputs never will."""
        taken: list[Output] = []
        num_refused = 0
        for output in outputs:
            given = self._given.get(output.segment.response_id)
            if given is None or given.sender != sender or output.segment.start < given.position:
                num_refused += 1
                continue
            given.early[output.segment.start] = output
            while (following := given.early.pop(given.position, None)) is not None:
                taken.append(following)
                given.position = following.segment.end
                if following.finish is not None:
                    del self._given[output.segment.response_id]
                    break
        return taken, num_refused

    def _forget(self, sender: InstanceStart, responses: Iterable[ResponseId]) -> None:
        for response in responses:
            if (given := self._given.get(response)) is not None and given.sender == sender:
                del self._given[response]


def _answer(instance: InstanceId, message: object) -> ev.InstanceEvent:
    """Return the event of a message without tokens."""
    match message:
        case ev.InstanceLost() | ev.InstanceStopped():
            return message
        case RolloutReady(version=version):
            return ev.InstanceStarted(instance=instance, version=version)
        case Pulled(version=version, seconds=seconds):
            return ev.WeightsPulled(instance=instance, version=version, seconds=seconds)
        case PullFailed(reason=reason):
            return ev.PullFailed(instance=instance, reason=reason)
        case Aborted(lengths=lengths):
            aborted = tuple(ev.Aborted(response=response, length=length) for response, length in lengths)
            return ev.ResponsesAborted(instance=instance, aborted=aborted)
        case Released(seconds=seconds):
            return ev.MemoryReleased(instance=instance, seconds=seconds)
        case _:
            raise TypeError(f"unknown message {message!r}")


def reported(instance: InstanceId, report: Report) -> ev.RolloutReported:
    """Return the event of a report: its metadata without tokens. Progress is sorted by group, which journals encode in
    a short form."""
    last = {output.segment.response_id: output for output in report.outputs}.values()
    return ev.RolloutReported(
        instance=instance,
        version=report.version,
        progressed=tuple(
            ev.Progressed(response=output.segment.response_id, length=output.segment.end)
            for output in sorted(last, key=lambda output: output.segment.response_id)
            if output.finish is None
        ),
        finished=tuple(
            ev.Finished(response=output.segment.response_id, length=output.segment.end, finish=_finish(output))
            for output in last
            if output.finish is not None
        ),
        num_preemptions=report.num_preemptions,
        submit_s=round(report.submit_s, 6),
        interrupt_s=round(report.interrupt_s, 6),
        prefill=None if report.prefill is None else replace(report.prefill, seconds=round(report.prefill.seconds, 6)),
    )


def _finish(output: Output) -> Finish:
    assert output.finish is not None
    return output.finish
