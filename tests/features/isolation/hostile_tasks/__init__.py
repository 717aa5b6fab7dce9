"""Task functions that do to their process what no other task should have to suffer."""
