"""Slots: daemon threads that run task functions, and the main thread's view of them."""

from tidemill.slots.pool import Slots
from tidemill.slots.running import ISOLATION_ALLOWANCE, Ended, Running

__all__ = ["ISOLATION_ALLOWANCE", "Ended", "Running", "Slots"]
