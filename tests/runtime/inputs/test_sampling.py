"""Sampling parameters come from settings, and end tokens from the model's own files too."""

from __future__ import annotations

import json
from pathlib import Path

from tailrace.config.rollout_settings import SamplingSettings
from tailrace.engines.contract import Sampling
from tailrace.runtime.inputs.sampling import end_tokens, sampling


def test_every_sampling_setting_reaches_the_request() -> None:
    settings = SamplingSettings(temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, stop=("END",), stop_token_ids=(9, 4))
    assert sampling(settings, (2, 4)) == Sampling(
        temperature=0.7, top_p=0.9, top_k=5, min_p=0.1, stop_token_ids=(2, 4, 9), stop_strings=("END",)
    )


def test_a_response_ends_at_every_token_that_a_file_of_the_model_names(tmp_path: Path) -> None:
    assert end_tokens(tmp_path, None) == ()
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    assert end_tokens(tmp_path, 2) == (2, 5, 7)
