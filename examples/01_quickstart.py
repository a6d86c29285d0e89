"""Train the built-in model from Python: a model, prompts, a reward.

    python examples/01_quickstart.py

Takes about a minute on two CPU cores. Run it again: the run is finished, so its result is shown at once.
"""

import tailrace

result = tailrace.train(
    model="tiny-arith",
    prompts="builtin:arith-train",
    reward="exact_match",
    output_dir="runs/example-01",
    max_steps=15,
    learning_rate=3e-4,
    max_response_length=384,
)
first, last = result.rows()[0], result.rows()[-1]
print(f"reward {first['reward/mean']:.2f} -> {last['reward/mean']:.2f}; the model is in {result.checkpoint}")
