"""One rank of a group of two: it meets the other, adds up, gathers, and says at which addresses it listens."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

import torch
import torch.distributed as dist

from tailrace.workers.link import Link
from tailrace.workers.meeting import meet
from tailrace.workers.messages import TrainingInit

_LISTENS = "0A"


def serve(link: Link, init: TrainingInit) -> None:
    ranks = meet(link, init)
    found = torch.tensor(1.0 + ranks.index)
    dist.all_reduce(found)
    link.send((float(found), ranks.gather({"rank": ranks.index, "words": ["ä", None, 0.1]}), listening_addresses()))
    link.receive()


def listening_addresses() -> set[str]:
    """Addresses of this process's sockets that take connections."""
    links = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    ]
    sockets = {link.removeprefix("socket:[").removesuffix("]") for link in links if link.startswith("socket:")}
    return {_address(row[1]) for row in _rows() if row[3] == _LISTENS and row[9] in sockets}


def _rows() -> list[list[str]]:
    files = (Path("/proc/self/net/tcp"), Path("/proc/self/net/tcp6"))
    return [line.split() for file in files if file.exists() for line in file.read_text().splitlines()[1:]]


def _address(text: str) -> str:
    words = bytes.fromhex(text.partition(":")[0])
    packed = b"".join(struct.pack(">I", word) for word in struct.unpack(f"={len(words) // 4}I", words))
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)
