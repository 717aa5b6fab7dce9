"""The task functions of the load, by themselves, so that a container imports nothing else."""
