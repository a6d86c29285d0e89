"""What a long journal says, kept up to some position, so that readers begin there and not at the first entry.

    account, position = summaries.start(files)
    account.follow(entry for _, entry in journal_file.read(files.journal, position))

* `summary.bin` is one line of JSON (formats, position), then the pickled `Account` of all entries before the position.
* It is written by a process beside the run (`python -m tailrace.observe.summaries RUN`) whenever segments of
  the journal were compressed, and ends where they end: a checkpoint covers them, so they do not change any more.
* It never says anything that the journal does not. One that is missing, damaged, or written by other code than is
  running now counts for nothing, and the whole journal is read.
* A run directory may come from anybody. So reading a summary makes only objects whose constructors set fields.
"""

from __future__ import annotations

import contextlib
import copyreg
import dataclasses
import gc
import gzip
import io
import json
import os
import pickle
import sys
import zlib
from collections.abc import Iterator
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from tailrace.core.journal import FORMAT
from tailrace.observe.account import Account
from tailrace.observe.journal import journal_file
from tailrace.observe.journal.journal_segments import SUMMARY_NAME, closed_segments
from tailrace.observe.journal.run_files import RunFiles

_OURS = ("tailrace.core.", "tailrace.observe.")
_PLAIN = {("builtins", "set"), ("builtins", "frozenset"), ("collections", "deque"), ("collections", "Counter")}
_FOLDS = {
    ("tailrace.observe.account", "Account"),
    ("tailrace.observe.metrics.rows", "Metrics"),
    ("tailrace.observe.prompts.fates", "Fates"),
    ("tailrace.observe.shared_fold.part_scores", "PartScores"),
    ("tailrace.observe.shared_fold.responses", "ResponseRecords"),
    ("tailrace.observe.shared_fold.run_fold", "RunFold"),
    ("tailrace.observe.shared_fold.trainer_work", "TrainerWork"),
    ("tailrace.observe.time_use.timeline", "Timeline"),
}
"""Classes of an account that are not records."""
_DAMAGES = (
    OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, ImportError, zlib.error,
    pickle.UnpicklingError,
)  # fmt: skip
"""What reading bytes raises that are no summary."""


def start(files: RunFiles) -> tuple[Account, int]:
    """The account of the first entries and the position after them; an empty one and 0 where none is kept."""
    try:
        with (files.path / SUMMARY_NAME).open("rb") as file, without_collection():
            head = json.loads(file.readline())
            if (head["format"], head["code"]) == (FORMAT, _fingerprint()):
                account = _Reader(io.BytesIO(gzip.decompress(file.read()))).load()
                if isinstance(account, Account):
                    return account, int(head["position"])
    except _DAMAGES:
        pass  # whatever it was, the journal says the same
    return Account(), 0


def extend(files: RunFiles) -> int:
    """Bring the summary to the end of the last compressed segment; returned is its position."""
    account, position = start(files)
    packed = [segment.end for segment in closed_segments(files.journal) if segment.is_packed]
    until = max(packed, default=0)
    if until <= position:
        return position
    with without_collection():
        account.follow(entry for end, entry in journal_file.read(files.journal, position) if end <= until)
        _write(files.path / SUMMARY_NAME, account, until)
    return until


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """An account is millions of objects and no garbage: searching them for some would take most of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Writer(pickle.Pickler):
    """Writes members of enums by value. Python up to 3.11.3 would write a call of ``getattr``, which is not read."""

    def __init__(self, file: io.BytesIO, protocol: int) -> None:
        super().__init__(file, protocol)
        ours = [found for found in _subclasses(Enum) if found.__module__.startswith(_OURS)]
        self.dispatch_table = copyreg.dispatch_table | dict.fromkeys(ours, _reduce_member)


def _reduce_member(member: Enum) -> tuple[type[Enum], tuple[Any]]:
    return type(member), (member.value,)


def _subclasses(base: type[Enum]) -> Iterator[type[Enum]]:
    for found in base.__subclasses__():
        yield found
        yield from _subclasses(found)


class _Reader(pickle.Unpickler):
    """Makes objects of classes whose constructors only set fields: records, enums and the folds of an account.

    A name with dots would lead from one of our modules to any other module, so it is refused.
    """

    def find_class(self, module: str, name: str) -> Any:
        if "." not in name and (module.startswith(_OURS) or (module, name) in _PLAIN):
            found = super().find_class(module, name)
            if isinstance(found, type) and ((module, name) in _PLAIN or _only_sets_fields(found, module)):
                return found
        raise pickle.UnpicklingError(f"a summary holds no {module}.{name}")


def _only_sets_fields(found: type, module: str) -> bool:
    is_ours = found.__module__ == module
    is_record = dataclasses.is_dataclass(found) or issubclass(found, Enum) or hasattr(found, "_fields")
    return is_ours and (is_record or (module, found.__name__) in _FOLDS)


def _write(path: Path, account: Account, position: int) -> None:
    head = {"format": FORMAT, "code": _fingerprint(), "position": position}
    body = io.BytesIO()
    _Writer(body, protocol=pickle.HIGHEST_PROTOCOL).dump(account)
    data = gzip.compress(body.getbuffer(), compresslevel=1)
    draft = path.with_name(path.name + ".draft")
    draft.write_bytes(json.dumps(head).encode() + b"\n" + data)
    draft.replace(path)


@cache
def _fingerprint() -> str:
    """Changes with the code whose objects are kept."""
    package, value = Path(__file__).parents[1], 0
    for path in sorted(path for name in ("core", "observe") for path in (package / name).rglob("*.py")):
        value = zlib.crc32(path.read_bytes(), value)
    return f"{sys.version_info.major}.{sys.version_info.minor}-{value:08x}"


def main() -> None:
    os.nice(19)
    extend(RunFiles.find(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
