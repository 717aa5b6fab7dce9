"""Dead letters: failed tasks, kept in ``tasks_dlq`` until they are redriven or purged."""
