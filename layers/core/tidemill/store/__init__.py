"""Storage of tasks in MongoDB: one function for each operation.

The functions take the ``Tasks`` collection of `open_tasks`: majority writes, primary reads, raw documents.
"""
