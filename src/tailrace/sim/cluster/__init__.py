"""Many jobs on shared accelerators in virtual time: the scheduler is the real one, jobs and transfers are models."""
