"""Administration: operations for the command line and the operate function."""
