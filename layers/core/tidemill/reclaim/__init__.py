"""Take back what vanished workers held, tend to what no claim can see, and measure what waits."""

from tidemill.reclaim.keeper import Keeper
from tidemill.reclaim.measures import GAUGES
from tidemill.reclaim.run import NAMES, reclaim

__all__ = ["GAUGES", "NAMES", "Keeper", "reclaim"]
