"""Why a task is not running: facts are read by a constant number of commands, and become sentences."""

from tidemill.explaining.facts import explain
from tidemill.explaining.values import Explanation, Reason

__all__ = ["Explanation", "Reason", "explain"]
