"""Every use case dies before or after each of its calls; then the ticks go on, and all has to be as if it had not."""

from tools.chaos.crash_points.run import survive

__all__ = ["survive"]
