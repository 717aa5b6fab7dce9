"""Task functions that end their process, and one that does no harm."""
