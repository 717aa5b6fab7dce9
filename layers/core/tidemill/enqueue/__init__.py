"""Enqueueing: requests become stored tasks, once each, also if a schedule or an invocation is delivered again."""
