"""The ``bench`` command: what this machine does per second, beside what its bandwidth and arithmetic allow.

``bounds.py`` is arithmetic. The other files measure: ``machine_speed.py`` the machine, ``engine_speed.py`` the rollout
engine, ``worker_speed.py`` the training worker and the weight channel. ``measure.py`` puts them together.
"""
