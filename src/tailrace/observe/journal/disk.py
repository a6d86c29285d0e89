"""Recognises a full disk in any message, by the words of the operating system."""

from __future__ import annotations

import errno
import os

DISK_FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def says_disk_full(text: str) -> bool:
    return any(words in text for words in DISK_FULL)
