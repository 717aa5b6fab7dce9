"""Task functions in processes of their own, so that one that dies, hangs or eats all memory harms no other task."""

from tidemill.isolation.nursery import Nursery
from tidemill.isolation.order import IsolatedRun, Isolation

__all__ = ["IsolatedRun", "Isolation", "Nursery"]
