"""Layers of a model that lie in host memory and come to the device while the layers before them compute.

``layer_offload.py`` does it for a Hugging Face decoder. ``turns.py`` decides which layer lies in which buffer, and
``residency.py`` which layers stay; both are arithmetic and import no torch. ``copies.py`` moves the bytes.
"""
