"""The GPUs of this machine: which there are, their memory, and how several workers share one."""
