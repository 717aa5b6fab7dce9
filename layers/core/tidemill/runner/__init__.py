"""Run one task function: in a thread of this process, or in a child process."""
