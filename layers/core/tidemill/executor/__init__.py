"""Claim and run due tasks until there are none or the time is up: the heart of Tidemill."""

from tidemill.executor.life import Worker
from tidemill.executor.loop import execute, work
from tidemill.executor.report import Report
from tidemill.executor.runtime import Order, Runtime

__all__ = ["Order", "Report", "Runtime", "Worker", "execute", "work"]
