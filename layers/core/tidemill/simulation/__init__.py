"""What the policies lead to, on a virtual clock: the code that decides is the real one, all else is made up."""

from tidemill.simulation.arrivals import Arrivals, Course, arrivals
from tidemill.simulation.priority import Comparison, RetryPriority, Step, Timeline, retry_priority
from tidemill.simulation.scenario import Scenario, Wave
from tidemill.simulation.waves import Interval, Starvation, starvation

__all__ = [
    "Arrivals",
    "Comparison",
    "Course",
    "Interval",
    "RetryPriority",
    "Scenario",
    "Starvation",
    "Step",
    "Timeline",
    "Wave",
    "arrivals",
    "retry_priority",
    "starvation",
]
