"""Prompts are rows with `prompt` and `answer`: a list, or a file.

    python examples/03_your_own_data.py

Columns under the names other systems use (`question`, `ground_truth`, `messages`, ...) are found by themselves; what
was found is printed. Other columns stay available to rewards.
"""

import random

import tailrace

rng = random.Random(0)
pairs = [(rng.randrange(50), rng.randrange(50)) for _ in range(200)]
rows = [{"question": f"{a}+{b}=", "ground_truth": str(a + b)} for a, b in pairs]

result = tailrace.train(
    model="tiny-arith",
    prompts=rows,
    reward="exact_match",
    output_dir="runs/example-03",
    max_steps=5,
    rollout_batch_size=16,
    learning_rate=3e-4,
    max_response_length=64,
)
print(f"reward {result.metrics['reward/mean']:.2f}")
