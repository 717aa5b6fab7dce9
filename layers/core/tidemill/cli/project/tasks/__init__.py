"""Task functions. Each module registers its own; modules with a leading underscore are helpers."""
