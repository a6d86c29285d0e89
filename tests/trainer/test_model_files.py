"""Models as several ranks open them: in their files, until a layer's turn comes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from engines.rollouts import save_random_model, small_llama
from tailrace.store.tensor_file import stored_types
from tailrace.trainer.model import tree_attention
from tailrace.trainer.model.model_files import load_model, open_model

CPU = torch.device("cpu")


def rewrite(folder: Path, **types: torch.dtype) -> None:
    """Store tensors whose names contain a key in another type."""
    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        for part, dtype in types.items():
            tensors[name] = tensors[name].to(dtype) if part in name else tensors[name]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_opened_model_has_the_types_of_its_files_and_a_loaded_one_is_fp32(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    save_random_model(tmp_path, small_llama())
    rewrite(tmp_path, weight=dtype)
    opened, loaded = open_model(tmp_path), load_model(tmp_path, device=CPU)
    for mine, theirs in zip(opened.parameters(), loaded.parameters(), strict=True):
        assert mine.dtype == dtype
        assert theirs.dtype == torch.float32
        assert torch.equal(mine.float(), theirs)


def test_files_of_several_types_are_not_rounded(tmp_path: Path) -> None:
    save_random_model(tmp_path, small_llama())
    rewrite(tmp_path, mlp=torch.bfloat16)
    assert stored_types(tmp_path) == {"F32", "BF16"}
    opened, stored = open_model(tmp_path), load_file(tmp_path / "model.safetensors")
    for name, parameter in opened.named_parameters():
        assert torch.equal(parameter, stored[name].float()), name


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mixture", "mistral"])
def test_an_opened_model_sees_trees_if_the_loaded_one_does(kind: str, tmp_path: Path, two_threads: None) -> None:
    """In half precision two ways to compute the same differ by more than in fp32, with several threads most of all."""
    sizes = {"hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2, "intermediate_size": 512}
    sizes |= {"vocab_size": 128, "num_hidden_layers": 4}
    config: dict[str, PreTrainedConfig] = {
        "llama": LlamaConfig(**sizes),
        "qwen3": Qwen3Config(**sizes, head_dim=64),
        "mixture": Qwen3MoeConfig(**sizes, head_dim=64, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64),
        "mistral": MistralConfig(**sizes, sliding_window=16),
    }
    AutoModelForCausalLM.from_config(config[kind]).to(torch.bfloat16).save_pretrained(tmp_path)
    state = torch.random.get_rng_state()
    opened = open_model(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), state), "it drew random numbers"
    assert opened.config.num_hidden_layers == 4
    loaded = load_model(tmp_path, device=CPU)
    assert tree_attention.sees_trees(opened) == tree_attention.sees_trees(loaded) == (kind != "mistral")


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


IN_A_PROCESS = """
import sys
from pathlib import Path
import torch
from tailrace.trainer.model.model_files import load_model, open_model

def own_mib():
    [line] = [line for line in open("/proc/self/status") if line.startswith("RssAnon")]
    return int(line.split()[1]) / 1024

folder = Path(sys.argv[1])
load_model(folder / "warm", device=torch.device("cpu"))
before = own_mib()
opened = open_model(folder / "large")
between = own_mib()
loaded = load_model(folder / "large", device=torch.device("cpu"))
print(between - before, own_mib() - between)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.long
def test_an_opened_model_takes_no_memory_of_the_process(tmp_path: Path) -> None:
    save_random_model(tmp_path / "warm", small_llama())
    save_random_model(tmp_path / "large", small_llama(vocab_size=65536, hidden_size=256))
    rewrite(tmp_path / "large", weight=torch.bfloat16)
    found = subprocess.run(
        [sys.executable, "-c", IN_A_PROCESS, str(tmp_path)], check=True, capture_output=True, text=True
    )
    opened_mib, loaded_mib = map(float, found.stdout.split())
    assert loaded_mib > 60  # 16 million embeddings in fp32
    assert opened_mib < loaded_mib / 4
