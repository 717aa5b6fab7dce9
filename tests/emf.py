"""Metrics in CloudWatch's embedded format, read as CloudWatch reads them."""

from __future__ import annotations

import math
from typing import Any

from tidemill.aws.metrics import MAX_VALUES


def metrics_in(line: dict[str, Any]) -> list[str]:
    """Take a line apart as CloudWatch does, which refuses what does not fit its format without a word."""
    [directive] = line["_aws"]["CloudWatchMetrics"]
    assert directive["Dimensions"] == [["service"]]
    names = [one["Name"] for one in directive["Metrics"]]
    assert line.keys() == {"_aws", "service", *names}
    assert {one["Unit"] for one in directive["Metrics"]} <= {"Count", "Seconds"}
    assert all(0 < len(line[name]) <= MAX_VALUES for name in names)
    assert all(math.isfinite(value) for name in names for value in line[name])
    return names
