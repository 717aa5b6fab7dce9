"""What became of one run of a function: from calling it, whatever it does, to a plain value."""

from tidemill.conclusions.concluding import conclude
from tidemill.conclusions.coroutines import Coroutines, run_to_end
from tidemill.conclusions.values import Conclusion, Crashed, Lost, NotStarted, Overran, Raised, Returned, Snoozing

__all__ = [
    "Conclusion",
    "Coroutines",
    "Crashed",
    "Lost",
    "NotStarted",
    "Overran",
    "Raised",
    "Returned",
    "Snoozing",
    "conclude",
    "run_to_end",
]
