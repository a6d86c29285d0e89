"""The ``bench`` command: what this machine does per second, beside what its bandwidth and arithmetic allow.

``machine_speed.py`` measures the machine, ``engine_speed.py`` the rollout engine, ``worker_speed.py`` the training
worker and the weight channel. ``measure.py`` puts them together and compares them with ``sizing/speed_bounds.py``.
"""
