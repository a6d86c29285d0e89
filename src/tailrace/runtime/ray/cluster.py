"""The connection of this process to a Ray cluster."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from tailrace.config.load import SettingsError
from tailrace.config.ray_settings import RaySettings

LOCAL = "local"
_OBJECT_STORE = 512 * 1024 * 1024
"""Bytes of a Ray that is started for a run. Whoever needs more starts Ray and names its address."""
_KNOCK_LIMIT_S = 10.0


@contextmanager
def connected(settings: RaySettings, *, num_cpus: int = 1) -> Iterator[None]:
    """Connect to the cluster of the settings, or start Ray on this machine with this many logical CPUs.

    At the end the connection is closed, every actor of the run ends, and so does a Ray that was started for it.
    """
    address = address_of(settings)
    try:
        _knock(address)
        if address == LOCAL:
            ray.init(
                LOCAL,
                num_cpus=num_cpus,
                object_store_memory=_OBJECT_STORE,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.WARNING,
            )
        else:
            ray.init(address, log_to_driver=False, logging_level=logging.WARNING)
    except (OSError, RuntimeError, ValueError) as error:
        raise SettingsError(f"cannot reach a Ray cluster at ray.address '{address}': {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def address_of(settings: RaySettings) -> str:
    return settings.address or os.environ.get("RAY_ADDRESS") or LOCAL


def _knock(address: str) -> None:
    """Raise ``OSError`` if nobody listens at HOST:PORT. Ray itself would try for minutes."""
    if address.startswith("ray://"):
        raise ValueError("start the run on a node of the cluster, and give the address of the cluster's head")
    host, colon, port = address.rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_LIMIT_S).close()
