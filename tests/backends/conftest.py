"""Tests of engines that need more than ``make install`` installs. ``make test-backends`` runs them."""

from __future__ import annotations

import torch

from tailrace.engines.vllm.versions import prepare_environment

prepare_environment(is_gpu=torch.cuda.is_available())
torch.set_num_threads(1)
