"""Task functions of a deployment."""
