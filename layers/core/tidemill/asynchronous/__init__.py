"""Async twins of the client. Tools write them from the sync sources: `tools/async_twins.py`."""
