"""Settings as their declarations describe them: name, meaning, possible values, default. The help is made from these.

Choices and kinds of values come from the types. A section with the keys of a table (`[[eval]]`) counts as a section.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from tailrace.config.section import COMMON

_NULL = "null"
_KINDS: dict[Any, tuple[str, ...]] = {
    bool: ("true", "false"),
    int: ("INT",),
    float: ("NUMBER",),
    str: ("TEXT",),
    Path: ("PATH",),
    dict: ("TABLE",),
    NoneType: (_NULL,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSetting:
    name: str
    """Full name (`trainer.learning_rate`); of a key of a table, the key alone."""
    text: str
    values: tuple[str, ...]
    """Choices as they are written, and kinds of values in capitals (`INT`)."""
    default: Any
    is_required: bool
    """Whether it must be given. It has no default then."""
    is_common: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSection:
    name: str
    """Empty: the settings of no section. Of a table, what a recipe writes above it: `[[eval]]`."""
    text: str
    settings: tuple[DeclaredSetting, ...]

    @property
    def is_table(self) -> bool:
        return self.name.startswith("[[")


def leaves(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(dotted name, documentation) of every setting. A list of tables is one setting."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from leaves(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field.description or ""


def sections(root: BaseModel, prefix: str = "") -> Iterator[DeclaredSection]:
    """Yield each section of ``root``, a section with its defaults. Settings of no section come last."""
    fields = {prefix + name: (field.annotation, getattr(root, name)) for name, field in type(root).model_fields.items()}
    settings = tuple(_settings(type(root), prefix, root))
    own = [
        DeclaredSection(name=prefix.removesuffix("."), text=_text(type(root)), settings=settings),
        *(
            DeclaredSection(name=f"[[{name}]]", text=_text(table), settings=_keys(table))
            for name, (annotation, _) in fields.items()
            if (table := _table(annotation)) is not None
        ),
    ]
    inner = [
        part
        for name, (annotation, value) in fields.items()
        if is_section(annotation)
        for part in sections(value, f"{name}.")
    ]
    yield from (*own, *inner) if prefix else (*inner, *own)


def _keys(table: type[BaseModel]) -> tuple[DeclaredSetting, ...]:
    """Return the keys of a table, those first that it must have."""
    return tuple(sorted(_settings(table, "", None), key=lambda key: not key.is_required))


def is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _settings(section: type[BaseModel], prefix: str, defaults: BaseModel | None) -> Iterator[DeclaredSetting]:
    for name, field in section.model_fields.items():
        if is_section(field.annotation):
            continue
        default = field.default if defaults is None else getattr(defaults, name)
        values = dict.fromkeys(_values(field.annotation))
        if default is None:
            values.pop(_NULL, None)  # leaving the setting out says the same
        yield DeclaredSetting(
            name=prefix + name,
            text=" ".join((field.description or "").split()),
            values=tuple(values),
            default=default,
            is_required=field.is_required(),
            is_common=COMMON in field.metadata,
        )


def _text(section: type[BaseModel]) -> str:
    return " ".join((section.__doc__ or "").split())


def _table(annotation: Any) -> type[BaseModel] | None:
    """Return the section of which a setting holds a list."""
    parts = get_args(annotation)
    if get_origin(annotation) is tuple:
        return parts[0] if is_section(parts[0]) else None
    return next((found for part in parts if (found := _table(part)) is not None), None)


def _values(annotation: Any) -> Iterator[str]:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        yield from map(str, parts)
    elif origin is Annotated:
        yield from _values(parts[0])
    elif origin in (Union, UnionType):
        for part in parts:
            yield from _values(part)
    elif origin is tuple:
        yield "LIST" if is_section(parts[0]) else f"[{'|'.join(_values(parts[0]))}, ...]"
    elif isinstance(annotation, type) and issubclass(annotation, Enum):
        yield from (str(member.value) for member in annotation)
    else:
        yield from _KINDS[origin or annotation]
