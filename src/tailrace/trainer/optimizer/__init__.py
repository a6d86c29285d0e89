"""AdamW, on the device or on the host, and the learning rate."""
