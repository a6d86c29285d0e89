"""A reward is a plain function; its parameters are filled by name.

    python examples/02_your_own_reward.py

`response` is the generated text; `answer` and any other column of the prompt's row are there under their own names.
Return a number, or a dict with `score` and further numbers to log. The function runs in a process of its own with a
time limit: if it raises, hangs or crashes, that is an outcome of the response, counted in `reward/num_*`.
"""

import tailrace


def right_and_short(response: str, answer: str, terms: int) -> dict[str, float]:
    """One point for the right answer, a little less for every token beyond what the chain needs."""
    is_right = response.rpartition("####")[2].strip() == answer
    surplus = max(0, len(response) - 8 * terms)
    return {"score": is_right * max(0.0, 1.0 - 0.01 * surplus), "is_right": float(is_right), "surplus": surplus}


result = tailrace.train(
    model="tiny-arith",
    prompts="builtin:arith-train",
    reward=right_and_short,
    output_dir="runs/example-02",
    max_steps=5,
    learning_rate=3e-4,
    max_response_length=384,
)
print(f"right: {result.metrics['reward/is_right/mean']:.2f}, surplus: {result.metrics['reward/surplus/mean']:.1f}")
