"""`make serve`: the HTTP API on this machine, with a MongoDB and ticks of its own, in one process."""
