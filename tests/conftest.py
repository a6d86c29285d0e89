"""Settings that must be made before anything is imported."""

from __future__ import annotations

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    # Without a GPU, Triton kernels run in Triton's interpreter. Triton looks at this when it is imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")
