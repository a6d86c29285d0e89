"""A reader in a process of its own that takes a slot and never moves on."""

from __future__ import annotations

import os
import sys
import time

from tailrace.weights.slot_locks import SlotLocks

if __name__ == "__main__":
    locks = SlotLocks(os.open(sys.argv[1], os.O_RDONLY))
    print(locks.share(int(sys.argv[2])), flush=True)
    time.sleep(600)
