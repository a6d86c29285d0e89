"""Dataclasses and named tuples to JSON values and back, by their type annotations.

Ids become their short string form, enums their value. ``decode(type, encode(x)) == x`` for every type the
core uses. An unknown type raises ``TypeError``; it is never written with ``str()``. A field that ``__init__`` does not
take is computed from the others: it is not stored, and decoding computes it again. A record that older releases stored
with other names or values has a static method ``upgraded``, which gets the stored fields and returns today's. It is not
asked for records of a column. Names that changed in every record are in ``_FORMER_NAMES``, for columns too.

Frequent values have a short form:

* A field is omitted if its value is its default and the default is empty (0, "", (), None, False).
* ``tuple[ResponseId, ...]`` is one string per group: ``["train:0:17:0-7:0", "18:0,2", "19:3:1"]``. It names the
  members, and the attempt unless it is 0; source and epoch are named only where they change.
* ``tuple[SomeRecord, ...]`` is one column per field: ``{"response": ["train:0:17:0-2:0"], "length": [5, 9, 7],
  "finish": "stop"}``. A column of equal plain values is that value.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import cache, lru_cache
from itertools import groupby, repeat

from tailrace.core.ids import GroupId, ResponseId

_Json = object
_Write = Callable[[typing.Any], _Json]
_Read = Callable[[typing.Any], typing.Any]

_FORMER_NAMES = {"trajectory": "response", "trajectories": "responses"}
"""Fields as older releases stored them, and their names today."""


def encode(value: object) -> _Json:
    cls: typing.Any = type(value)
    return _encoder(cls)(value)


@cache
def _encoder(cls: typing.Any) -> _Write:
    """Build the function that writes values of this class. Cached, because there are few classes and many values."""
    if issubclass(cls, Enum):
        return lambda value: value.value
    if cls is type(None) or issubclass(cls, bool | int | float | str):
        return lambda value: value
    if issubclass(cls, GroupId | ResponseId):
        return str
    if _is_record(cls):
        return _record_encoder(cls)
    if issubclass(cls, tuple | list):
        return lambda value: [encode(item) for item in value]
    if issubclass(cls, dict):
        return lambda value: {_encode_key(key): encode(item) for key, item in value.items()}
    raise TypeError(f"cannot encode a value of type {cls.__name__}")


def _is_record(cls: typing.Any) -> bool:
    is_id = isinstance(cls, type) and issubclass(cls, GroupId | ResponseId)
    return not is_id and (hasattr(cls, "_fields") or dataclasses.is_dataclass(cls))


def _names(cls: typing.Any) -> tuple[str, ...]:
    """Return the fields of a record that are stored."""
    if hasattr(cls, "_fields"):
        return tuple(cls._fields)
    return tuple(field.name for field in dataclasses.fields(cls) if field.init)


def _nothings(cls: typing.Any) -> dict[str, object]:
    """Return the empty defaults of a record's fields. A field that has its empty default is not stored."""
    if hasattr(cls, "_fields"):
        defaults = dict(cls._field_defaults)
    else:
        fields = [field for field in dataclasses.fields(cls) if field.default is not dataclasses.MISSING]
        defaults = {field.name: field.default for field in fields}
    return {name: default for name, default in defaults.items() if not default}


def _record_encoder(cls: typing.Any) -> _Write:
    hints, nothings = typing.get_type_hints(cls), _nothings(cls)
    always = [(name, _writer(hints[name])) for name in _names(cls) if name not in nothings]
    unless = [(name, _writer(hints[name]), nothings[name]) for name in _names(cls) if name in nothings]

    def write(value: typing.Any) -> _Json:
        data = {name: writer(getattr(value, name)) for name, writer in always}
        for name, writer, nothing in unless:
            found = getattr(value, name)
            if found != nothing:
                data[name] = writer(found)
        return data

    return write


@cache
def _writer(annotation: typing.Any) -> _Write:
    """Build the function that writes values of a field with this annotation."""
    if (present := _present(annotation)) is not None:
        inner = _writer(present)
        return lambda value: None if value is None else inner(value)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple and arguments[-1] is Ellipsis:
        return _tuple_writer(arguments[0])
    writers = [_writer(argument) for argument in arguments]
    if origin is list:
        return lambda value: [writers[0](item) for item in value]
    if origin is tuple:
        return lambda value: [writer(item) for writer, item in zip(writers, value, strict=True)]
    if origin is dict:
        return lambda value: {_encode_key(key): writers[1](item) for key, item in value.items()}
    return encode


def _present(annotation: typing.Any) -> typing.Any:
    """Return X for the annotation ``X | None``; None for any other annotation."""
    if typing.get_origin(annotation) not in (typing.Union, types.UnionType):
        return None
    (present,) = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
    return present


def _tuple_writer(item: typing.Any) -> _Write:
    if item is ResponseId:
        return _shorten_ids
    if _is_record(item):
        return _column_writer(item)
    writer = _writer(item)
    return lambda value: [writer(each) for each in value]


def _column_writer(cls: typing.Any) -> _Write:
    names, nothings, hints = _names(cls), _nothings(cls), typing.get_type_hints(cls)
    writers = {name: _tuple_writer(hints[name]) for name in names}

    def write(records: typing.Any) -> _Json:
        if not records:
            return []
        data: dict[str, _Json] = {}
        for name in names:
            column = [getattr(record, name) for record in records]
            first = column[0]
            is_equal = len(data) > 0 and all(value == first for value in column)
            if is_equal and name in nothings and first == nothings[name]:
                continue
            is_plain = is_equal and isinstance(first, str | int | float | Enum)
            data[name] = encode(first) if is_plain else writers[name](column)
        return data

    return write


def _encode_key(key: object) -> str:
    return key if isinstance(key, str) else str(encode(key))


def _shorten_ids(responses: Sequence[ResponseId]) -> list[str]:
    """Return one string for each run of consecutive ids of the same group and attempt."""
    found: list[str] = []
    last: tuple[str, int] | None = None
    for (group, attempt), run in groupby(responses, key=lambda response: (response.group, response.attempt)):
        members = _ranges([response.member for response in run])
        if (group.source, group.epoch) != last:
            found.append(f"{group}:{members}:{attempt}")
        else:
            found.append(f"{group.prompt}:{members}:{attempt}" if attempt else f"{group.prompt}:{members}")
        last = (group.source, group.epoch)
    return found


def _ranges(members: Sequence[int]) -> str:
    """Return member numbers in their given order, with consecutive ones as a range: ``0-3,7,5``."""
    runs: list[list[int]] = []
    for member in members:
        if runs and runs[-1][-1] == member - 1:
            runs[-1].append(member)
        else:
            runs.append([member])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def decode(annotation: typing.Any, data: typing.Any) -> typing.Any:
    return _decoder(annotation)(data)


@cache
def _decoder(annotation: typing.Any) -> _Read:
    """Build the function that reads values of this type. Cached, because there are few types and many values."""
    if hasattr(annotation, "__supertype__"):
        return _decoder(annotation.__supertype__)
    if annotation in (GroupId, ResponseId):
        # One id is named several times within a few entries: offered, submitted, reported, scored, trained.
        return lru_cache(maxsize=8192)(annotation.parse)
    if annotation in (int, float, str, bool):
        return typing.cast(_Read, annotation)
    if annotation is None:  # the value of a dict that serves as an ordered set
        return lambda data: None
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return annotation
    if _is_record(annotation):
        return _record_decoder(annotation, _names(annotation))
    return _container_decoder(annotation)


def _record_decoder(cls: typing.Any, names: Iterable[str]) -> _Read:
    hints = typing.get_type_hints(cls)
    readers = {name: _decoder(hints[name]) for name in names}

    def read(data: typing.Any) -> typing.Any:
        return cls(**{name: reader(data[name]) for name, reader in readers.items() if name in data})

    upgraded = getattr(cls, "upgraded", None)
    return _reading_former_names(cls, read if upgraded is None else lambda data: read(upgraded(data)))


def _reading_former_names(cls: typing.Any, read: _Read) -> _Read:
    """Let this reader of records accept data with the former names of fields too."""
    former = {old: new for old, new in _FORMER_NAMES.items() if new in _names(cls)}

    def read_either(data: typing.Any) -> typing.Any:
        for old, new in former.items():
            if old in data:
                data = {new if name == old else name: value for name, value in data.items()}
        return read(data)

    return read_either if former else read


def _container_decoder(annotation: typing.Any) -> _Read:
    if (present := _present(annotation)) is not None:
        inner = _decoder(present)
        return lambda data: None if data is None else inner(data)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is tuple and arguments[-1] is Ellipsis:
        return _tuple_reader(arguments[0])
    readers = [_decoder(argument) for argument in arguments]
    if origin is list:
        return lambda data: [readers[0](item) for item in data]
    if origin is tuple:
        return lambda data: tuple(reader(item) for reader, item in zip(readers, data, strict=True))
    if origin is dict:
        return lambda data: {readers[0](key): readers[1](item) for key, item in data.items()}
    raise TypeError(f"cannot decode {annotation!r}")


def _tuple_reader(item: typing.Any) -> _Read:
    if item is ResponseId:
        return _read_ids
    if _is_record(item):
        return _column_reader(item)
    reader = _decoder(item)
    return lambda data: tuple(map(reader, data))


def _column_reader(cls: typing.Any) -> _Read:
    hints, build = typing.get_type_hints(cls), _row_builder(cls)
    one = {name: _decoder(hints[name]) for name in _names(cls)}
    many = {name: _tuple_reader(hints[name]) for name in one}
    nothings = _nothings(cls)

    def read(data: typing.Any) -> tuple[typing.Any, ...]:
        if not data:
            return ()
        columns = {name: many[name](data[name]) for name in one if isinstance(data.get(name), list | dict)}
        (count,) = {len(column) for column in columns.values()}
        for name in one:
            if name not in columns:
                value = one[name](data[name]) if name in data else nothings[name]
                columns[name] = repeat(value, count)
        return build(count, [columns[name] for name in one])

    return _reading_former_names(cls, read)


def _row_builder(cls: typing.Any) -> Callable[[int, list[Iterable[typing.Any]]], tuple[typing.Any, ...]]:
    """Build the function that makes records from columns, one column for each stored field."""
    if hasattr(cls, "_fields"):
        return lambda count, columns: tuple(map(cls, *columns))
    names = _names(cls)
    if hasattr(cls, "__post_init__") or not hasattr(cls, "__slots__"):
        return lambda count, columns: tuple(map(lambda *row: cls(**dict(zip(names, row, strict=True))), *columns))
    setters = [getattr(cls, name).__set__ for name in names]

    def build(count: int, columns: list[Iterable[typing.Any]]) -> tuple[typing.Any, ...]:
        # Journals hold millions of these records. Setting the slots column by column is faster than ``__init__``.
        rows = tuple(object.__new__(cls) for _ in range(count))
        for setter, column in zip(setters, columns, strict=True):
            deque(map(setter, rows, column), maxlen=0)
        return rows

    return build


def _read_ids(data: Sequence[str]) -> tuple[ResponseId, ...]:
    found: list[ResponseId] = []
    source, epoch = "", 0
    for text in data:
        parts = text.rsplit(":", 4)
        if len(parts) == 5:
            source, epoch, text = parts[0], int(parts[1]), ":".join(parts[2:])
        found += _members(source, epoch, text)
    return tuple(found)


@lru_cache(maxsize=16384)
def _members(source: str, epoch: int, text: str) -> tuple[ResponseId, ...]:
    """Return the ids of ``prompt:members`` or ``prompt:members:attempt``. Cached: every report has the same ones."""
    prompt, members, *attempt = text.split(":")
    group, number = GroupId(source, epoch, int(prompt)), int(attempt[0]) if attempt else 0
    found: list[ResponseId] = []
    for run in members.split(","):
        first, _, last = run.partition("-")
        found += [ResponseId(group, member, number) for member in range(int(first), int(last or first) + 1)]
    return tuple(found)
