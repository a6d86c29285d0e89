"""The network: its files, adapters, attention over trees of tokens, and micro-batches as it takes them."""
