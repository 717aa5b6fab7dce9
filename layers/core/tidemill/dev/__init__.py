"""`tidemill dev`: a MongoDB, an executor with the tasks of this folder, sweeps and the HTTP API, in one command."""
