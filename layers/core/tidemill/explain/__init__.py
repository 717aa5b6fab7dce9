"""Explain: the reasons why a task is not running, from stored facts."""
