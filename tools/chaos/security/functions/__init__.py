"""Task functions that give away all they know; those that come with Tidemill are among them."""
