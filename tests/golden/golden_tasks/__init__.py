"""Functions for the scenarios, one for each way an attempt may end."""
