"""A run whose workers are Ray actors. The only package that imports ray; `docs/ray.md` is its manual."""
