"""Dataclasses and named tuples to JSON values and back, by their type annotations.

Ids become their short string form, enums their value. ``decode(type, encode(x)) == x`` for every type the
core uses; a type this file does not know is an error when it is first met, not a silent ``str()``. A field that
``__init__`` does not take follows from the others: it is not stored, and there again when they are read.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import cache, lru_cache

from tailrace.core.ids import GroupId, TrajectoryId

_Json = object


def encode(value: object) -> _Json:
    cls: typing.Any = type(value)
    return _encoder(cls)(value)


@cache
def _encoder(cls: typing.Any) -> Callable[[typing.Any], _Json]:
    """Build the function that writes values of this class. Cached: classes are few, values are many."""
    if issubclass(cls, Enum):
        return lambda value: value.value
    if cls is type(None) or issubclass(cls, bool | int | float | str):
        return lambda value: value
    if issubclass(cls, GroupId | TrajectoryId):
        return str
    if hasattr(cls, "_fields"):
        return _record_encoder(cls._fields)
    if issubclass(cls, tuple | list):
        return lambda value: [encode(item) for item in value]
    if issubclass(cls, dict):
        return lambda value: {_encode_key(key): encode(item) for key, item in value.items()}
    if dataclasses.is_dataclass(cls):
        return _record_encoder([field.name for field in dataclasses.fields(cls) if field.init])
    raise TypeError(f"cannot encode a value of type {cls.__name__}")


def _record_encoder(names: Sequence[str]) -> Callable[[typing.Any], _Json]:
    return lambda value: {name: encode(getattr(value, name)) for name in names}


def _encode_key(key: object) -> str:
    return key if isinstance(key, str) else str(encode(key))


def decode(annotation: typing.Any, data: typing.Any) -> typing.Any:
    return _decoder(annotation)(data)


@cache
def _decoder(annotation: typing.Any) -> Callable[[typing.Any], typing.Any]:
    """Build the function that reads values of this type. Cached: types are few, values are many."""
    if hasattr(annotation, "__supertype__"):
        return _decoder(annotation.__supertype__)
    if annotation in (GroupId, TrajectoryId):
        # One id is named several times within a few entries: offered, submitted, reported, scored, trained.
        return lru_cache(maxsize=8192)(annotation.parse)
    if annotation in (int, float, str, bool):
        return typing.cast(Callable[[typing.Any], typing.Any], annotation)
    if annotation in (None, type(None)):
        return lambda data: None
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return annotation
    if dataclasses.is_dataclass(annotation):
        return _record_decoder(annotation, [field.name for field in dataclasses.fields(annotation) if field.init])
    if hasattr(annotation, "_fields"):
        return _record_decoder(annotation, annotation._fields)
    return _container_decoder(annotation)


def _record_decoder(cls: typing.Any, names: Iterable[str]) -> Callable[[typing.Any], typing.Any]:
    hints = typing.get_type_hints(cls)
    readers = {name: _decoder(hints[name]) for name in names}
    return lambda data: cls(**{name: reader(data[name]) for name, reader in readers.items() if name in data})


def _container_decoder(annotation: typing.Any) -> Callable[[typing.Any], typing.Any]:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        (inner,) = [_decoder(argument) for argument in arguments if argument is not type(None)]
        return lambda data: None if data is None else inner(data)
    readers = [_decoder(argument) for argument in arguments if argument is not Ellipsis]
    if origin is list or (origin is tuple and arguments[-1] is Ellipsis):
        return lambda data: origin(readers[0](item) for item in data)
    if origin is tuple:
        return lambda data: tuple(reader(item) for reader, item in zip(readers, data, strict=True))
    if origin is dict:
        return lambda data: {readers[0](key): readers[1](item) for key, item in data.items()}
    raise TypeError(f"cannot decode {annotation!r}")
