from __future__ import annotations

import os
import subprocess
import sys


def test_the_reward_process_imports_neither_torch_nor_transformers_nor_numpy() -> None:
    script = (
        "import sys, tailrace.workers.reward\n"
        "print([name for name in ('torch', 'transformers', 'numpy', 'pydantic') if name in sys.modules])"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
