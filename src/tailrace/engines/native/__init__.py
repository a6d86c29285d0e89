"""The embedded rollout engine: plain torch, continuous batching, CPU and CUDA. Start at ``engine.py``."""
