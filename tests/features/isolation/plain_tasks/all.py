"""Every hostile function."""

from tidemill.registry import load

load("tests.features.isolation.hostile_tasks")
