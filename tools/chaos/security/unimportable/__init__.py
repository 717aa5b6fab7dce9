"""Task functions that cannot be imported, since what they need says too much."""
