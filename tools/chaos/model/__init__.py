"""A model of all that may become of a task, against the real store and use cases."""

from tools.chaos.model.run import survive

__all__ = ["survive"]
