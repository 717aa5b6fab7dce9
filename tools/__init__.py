"""Programs for whoever works on this repository."""
