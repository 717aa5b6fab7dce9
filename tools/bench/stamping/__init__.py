"""The task functions of the bench of pickup latency."""
