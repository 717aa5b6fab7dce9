"""What people ask about queues: how full they are now, and how their retries went."""

from tidemill.status.counts import Count
from tidemill.status.queues import MAX_CURRENT, MAX_NAME, CurrentTask, QueueStatus, queue_status, queue_statuses
from tidemill.status.statistics import RetryStatistics, retry_statistics

__all__ = [
    "MAX_CURRENT",
    "MAX_NAME",
    "Count",
    "CurrentTask",
    "QueueStatus",
    "RetryStatistics",
    "queue_status",
    "queue_statuses",
    "retry_statistics",
]
