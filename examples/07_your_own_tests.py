"""Programs are scored by test cases: `code_tests` runs the program of a response in isolation.

    python examples/07_your_own_tests.py

A row has `tests`, a list of `input` and `output`. It needs bubblewrap (`apt-get install bubblewrap`). The built-in
model only writes arithmetic, so `program_prefix` and `program_suffix` make a program of what it writes; a model that
writes programs does not need them. Test cases of other systems' code sets are understood too: docs/code-rewards.md.
"""

import random

import tailrace

PREFIX, SUFFIX = "worked = '''", "'''\nanswer = int(worked.rpartition('####')[2])\nprint(answer, answer % 2)"

rng = random.Random(0)
pairs = [(rng.randrange(50), rng.randrange(50)) for _ in range(100)]
rows = [
    {
        "prompt": f"{a}+{b}=",
        "program_prefix": PREFIX,
        "program_suffix": SUFFIX,
        "tests": [{"input": "", "output": f"{a + b} {(a + b) % 2}"}],
    }
    for a, b in pairs
]

result = tailrace.train(
    model="tiny-arith",
    prompts=rows,
    reward="code_tests",
    output_dir="runs/example-07",
    max_steps=5,
    rollout_batch_size=8,
    learning_rate=3e-4,
    max_response_length=64,
)
verdicts = {name: result.metrics[f"reward/verdict/{name}/mean"] for name in ("passed", "wrong", "crashed")}
print(", ".join(f"{name} {share:.2f}" for name, share in verdicts.items()))
