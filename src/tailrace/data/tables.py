"""Reads rows from parquet files and Hugging Face datasets. Values are plain Python objects, never arrays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from tailrace.data.row import Row

_EXTRA = "pip install 'tailrace[data]'"
_USUAL_SPLIT = "train"


def read_parquet(path: str) -> Iterator[Row]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ValueError(f"{path}: parquet files need the package pyarrow: {_EXTRA}") from error
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a parquet file that can be read: {_first_line(error)}") from error


def read_saved(directory: str, split: str) -> Iterator[Row]:
    """Rows of a dataset, or of a dictionary of splits, that `save_to_disk` wrote."""
    datasets = _package(directory)
    try:
        found = datasets.load_from_disk(directory)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{directory} holds no dataset saved with save_to_disk ({_first_line(error)}); "
            f"a directory of data files is written hf:{directory}"
        ) from error
    return iter(_chosen(found, directory, split))


def read_hub(name: str) -> Iterator[Row]:
    """Rows of `owner/name[/config][:split]`, or of a directory that `load_dataset` can read."""
    datasets = _package(name)
    place, _, split = name.rpartition(":") if ":" in name else (name, "", "")
    config = None
    if place.count("/") == 2 and not os.path.isdir(place):
        place, _, config = place.rpartition("/")
    try:
        found = datasets.load_dataset(place, config)
    except (OSError, ValueError, RuntimeError) as error:  # no network, no such dataset, a config must be named
        raise ValueError(f"dataset {name!r} cannot be downloaded from Hugging Face: {_first_line(error)}") from error
    return iter(_chosen(found, name, split))


def _chosen(found: Any, name: str, split: str) -> Any:
    if not isinstance(found, dict):
        if split:
            raise ValueError(f"{name} is a single dataset: it has no split {split!r}")
        return found
    split = split or (next(iter(found)) if len(found) == 1 else _USUAL_SPLIT)
    if split not in found:
        raise ValueError(f"{name} has no split {split!r}; there are {', '.join(found)}")
    return found[split]


def _package(name: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ValueError(f"{name}: Hugging Face datasets need the package datasets: {_EXTRA}") from error
    return datasets


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
