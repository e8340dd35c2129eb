"""The program that throttles what clients send, and its filters."""
