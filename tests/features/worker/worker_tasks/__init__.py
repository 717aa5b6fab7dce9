"""Task functions for workers that are watched from outside, through files."""
