"""A package of task functions that are all quick, for executors with little time."""
