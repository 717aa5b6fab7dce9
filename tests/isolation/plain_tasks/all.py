"""Every hostile function."""

from tidemill.registry import load

load("tests.isolation.hostile_tasks")
