"""Section of the chaos: each command that each use case sends fails once, twice and always, in each way it can."""

from tools.chaos.failures.run import survive

__all__ = ["survive"]
