"""Control data beside the tasks: task types, queues with their options, semaphores, the fleet, pressure."""
