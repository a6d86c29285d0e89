"""Kill a run in the middle, for real; the same command continues it.

    python examples/04_resume_after_a_crash.py

The second command takes the run up where its journal ends: steps that were done are not generated again.
"""

import subprocess
import sys
import time
from pathlib import Path

output = Path("runs/example-04")
command = [sys.executable, "-m", "tailrace", "train", "quickstart", "--output_dir", str(output)]
command += ["--schedule.max_steps", "6", "--eval_interval", "null", "--save_interval", "2"]

process = subprocess.Popen(command)
while process.poll() is None and not (output / "checkpoints" / "latest").exists():
    time.sleep(0.1)
process.kill()  # SIGKILL: no chance to tidy up
process.wait()
print("\n--- killed; now the same command again ---\n", flush=True)
subprocess.run(command, check=True)
