"""HTB with its classes, and the qdiscs that were there before it."""
