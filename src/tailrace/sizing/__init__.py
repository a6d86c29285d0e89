"""Arithmetic of devices and memory: which device does what, how much memory a run takes, and what fits a card.

Nothing here asks a machine or imports torch. ``device_plan.py`` and ``channel_choice.py`` say who gets which device and
how weights reach it; ``activations.py``, ``channel_memory.py``, ``parts.py``, ``host_memory.py`` and ``memory_plan.py``
add up bytes; ``fitting.py`` divides a card's memory; ``speed_bounds.py`` says how fast a card could be at best;
``resident_layers.py`` says how many layers of an offloaded model stay on the device.
``model_shape.py`` and ``known_shapes.py`` hold the sizes of models. What a machine really has is found by
``runtime/gpus``.
"""
