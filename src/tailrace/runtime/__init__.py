"""A run in real time: its parts are connected in ``local.py``, and ``driver.py`` gives the core its events."""
