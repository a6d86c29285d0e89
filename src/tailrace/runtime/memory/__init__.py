"""How much memory a run takes, part by part, and the defaults that follow from a card's memory.

``activations.py``, ``parts.py``, ``plan.py`` and ``fitting.py`` are arithmetic and import no torch. ``card.py`` asks
the machine, ``card_defaults.py`` puts both together. ``stated_card.py`` and ``planned.py`` are for a machine that is
not there.
"""
