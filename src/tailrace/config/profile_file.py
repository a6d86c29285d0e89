"""How the files are read that `tailrace profile` writes and settings name, and how they are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

_Profile = TypeVar("_Profile")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileFile:
    """One kind of these files."""

    setting: str
    """The setting that names it."""
    command: str
    """The command that writes it."""
    arguments: str = ""
    """What the command takes, as a user is told it."""

    def read(self, path: Path, make: Callable[[dict[str, Any]], _Profile]) -> _Profile:
        """Return what ``make`` makes of the file's contents; ``ValueError`` if the file cannot be read or is another
        one."""
        try:
            return make(json.loads(path.read_text()))
        except OSError as error:
            raise ValueError(f"{self.setting}: {path} cannot be read: {error.strerror or error}") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(
                f"{self.setting}: {path} is not a profile that `{self.command}` wrote ({error})"
            ) from error

    def refusal(self, path: Path, why: str) -> ValueError:
        """Return the error for a profile of something else."""
        command = f"{self.command} {self.arguments}".strip()
        return ValueError(f"{self.setting}: {path} does not fit this run: {why}; measure again with `{command}`")


def is_same_model(one: str, other: str) -> bool:
    """Whether two settings name the same model: they are equal, or two paths to one directory."""
    if one == other:
        return True
    return Path(one).is_dir() and Path(other).is_dir() and Path(one).resolve() == Path(other).resolve()
