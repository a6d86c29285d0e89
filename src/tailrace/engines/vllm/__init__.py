"""Rollout through vLLM, in the worker's process. Start at ``engine.py``.

Only this folder imports vllm, and only ``capabilities.py`` and ``versions.py`` may be imported without it.
"""
