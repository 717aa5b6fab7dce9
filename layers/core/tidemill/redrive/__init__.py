"""The way back: dead letters become tasks again."""

from tidemill.redrive.completing import complete
from tidemill.redrive.run import redrive
from tidemill.redrive.values import Code, Ground, Plan, Redriven, Redriver, Refused

__all__ = ["Code", "Ground", "Plan", "Redriven", "Redriver", "Refused", "complete", "redrive"]
