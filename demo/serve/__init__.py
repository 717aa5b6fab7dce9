"""`make serve`: the handlers behind HTTP on this machine, on a MongoDB of their own, with ticks; one process."""
