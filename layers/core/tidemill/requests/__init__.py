"""Requests: models and validation shared by Python, HTTP, direct invocations and schedules."""
