"""Train a low-rank adapter instead of all weights, and use it with PEFT.

    pip install 'tailrace[torch,lora]'
    python examples/05_lora.py

Takes about two minutes on two CPU cores. The checkpoint is the adapter alone; `tailrace export RUN DIRECTORY` merges
it into a plain Hugging Face model.
"""

from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

import tailrace

result = tailrace.train(
    model="tiny-arith",
    prompts="builtin:arith-train",
    reward="exact_match",
    output_dir="runs/example-05",
    max_steps=15,
    lora_rank=16,
    learning_rate=2e-3,  # adapters like ten times the rate of full training
    max_response_length=384,
)
first, last = result.rows()[0], result.rows()[-1]
print(f"reward {first['reward/mean']:.2f} -> {last['reward/mean']:.2f}")

tokenizer = AutoTokenizer.from_pretrained(result.checkpoint)
model = AutoPeftModelForCausalLM.from_pretrained(result.checkpoint)
adapter = sum(tensor.numel() for name, tensor in model.named_parameters() if "lora_" in name)
print(f"the adapter has {adapter:,} of {sum(tensor.numel() for tensor in model.parameters()):,} weights")
prompt = "17+8-5="
tokens = model.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=64, do_sample=False)
print(tokenizer.decode(tokens[0], skip_special_tokens=True))
