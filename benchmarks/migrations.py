"""Seconds that responses of a lent instance stand still until they go on elsewhere.

    python benchmarks/migrations.py --json benchmarks/results/migrations.json

Runs the arm ``lent`` of `streamed_round.py` and reads its journals. For each loan, from the command that interrupts the
responses of the instance:

* ``freed_s``: until its memory is released, so that training can have the device,
* ``sent_s``: until the last of them is given to another instance,
* ``further_s``: until the last of them that goes on has more tokens there, as reports tell (twenty a second).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from streamed_round import NUM_STEPS, PROMPTS, RESPONSES, SHAPE, run

from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.ids import InstanceId, ResponseId
from tailrace.core.journal import Entry
from tailrace.observe.journal import journal_file


@dataclass
class Loan:
    instance: InstanceId
    since: float
    left: set[ResponseId]
    """Interrupted responses of which the instance has not yet reported the end."""
    moving: dict[ResponseId, int] = field(default_factory=dict)
    """Those that go on elsewhere, with the tokens they have."""
    moved: int = 0
    tokens: int = 0
    freed_s: float = 0.0
    sent_s: float = 0.0
    further_s: float = 0.0

    def feed(self, entry: Entry) -> None:
        event, after = entry.event, entry.now - self.since
        if isinstance(event, ev.MemoryReleased) and event.instance == self.instance and not self.freed_s:
            self.freed_s = after
        if isinstance(event, ev.RolloutReported) and event.instance != self.instance:
            for each in (*event.progressed, *event.finished):
                if each.length > self.moving.get(each.response, each.length):
                    del self.moving[each.response]
                    self.further_s = after
        for command in entry.commands:
            if isinstance(command, do.Submit) and command.instance != self.instance:
                self._send([each for each in command.dispatches if each.response in self.left], after)

    def _send(self, dispatches: Iterable[do.Dispatch], after: float) -> None:
        for each in dispatches:
            self.left.remove(each.response)
            self.moving[each.response] = each.start
            self.moved, self.tokens, self.sent_s = self.moved + 1, self.tokens + each.start, after


def loans(journal: Path) -> Iterator[Loan]:
    loan: Loan | None = None
    for _, entry in journal_file.read(journal):
        for command in entry.commands:
            if isinstance(command, do.Interrupt):
                if loan is not None:
                    yield loan
                loan = Loan(command.instance, entry.now, set(command.responses))
        if loan is not None:
            loan.feed(entry)
    if loan is not None:
        yield loan


def summary(found: list[Loan]) -> dict[str, Any]:
    return {
        "num_loans": len(found),
        "responses_per_loan": round(sum(each.moved for each in found) / len(found), 1),
        "tokens_per_response": round(sum(each.tokens for each in found) / sum(each.moved for each in found), 1),
        "still_moving": sum(len(each.moving) for each in found),
        **{
            name: {"median": round(median(values), 3), "most": round(max(values), 3)}
            for name in ("freed_s", "sent_s", "further_s")
            for values in [[getattr(each, name) for each in found]]
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: list[Loan] = []
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(options.runs):
            journal = run("lent", seed, Path(directory) / str(seed)) / "journal.jsonl"
            found += [each for each in loans(journal) if each.freed_s and each.moved]
            print(f"run {seed + 1} of {options.runs}: {len(found)} loans", flush=True)
    result = {
        "machine": {"cores": os.cpu_count(), "cpu": platform.processor() or platform.machine()},
        "batch": {"prompts": PROMPTS, "responses": RESPONSES, "steps": NUM_STEPS, **SHAPE},
        **summary(found),
    }
    print(json.dumps(result, indent=1))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
