"""The executor: claims and runs due tasks until none is left or its time is up."""
