"""The address at which a worker listens for other workers of its run."""

from __future__ import annotations

import os
import socket
import sys

ADDRESS_VARIABLE = "TAILRACE_ADDRESS"
_LOOPBACK = "127.0.0.1"


def own_address() -> str:
    """The one that the worker was started with; else the one under which other machines reach this machine. On a
    machine without a network, its own address for itself."""
    if (given := os.environ.get(ADDRESS_VARIABLE)) is not None:
        return given
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address that nobody has; nothing is sent
            return str(probe.getsockname()[0])
        except OSError:
            return _LOOPBACK


def on_loopback() -> dict[str, str]:
    """Environment of workers that are all on this machine: what they open can be reached from this machine alone. The
    last two are for connections of torch.distributed; a user's own choice of them counts."""
    interface = "lo0" if sys.platform == "darwin" else "lo"
    chosen = {name: os.environ.get(name, interface) for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
    return {ADDRESS_VARIABLE: _LOOPBACK, **chosen}
