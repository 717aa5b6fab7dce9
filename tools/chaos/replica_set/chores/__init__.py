"""The task functions that are run meanwhile."""
