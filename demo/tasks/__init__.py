"""The task functions of the demo: those of ``layers/tasks``, and some that misbehave."""
