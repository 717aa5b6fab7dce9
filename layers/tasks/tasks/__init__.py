"""Task functions: each module registers its own; one whose name starts with an underscore only helps."""
