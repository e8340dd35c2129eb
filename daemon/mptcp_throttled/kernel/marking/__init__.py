"""What marks the packets of throttled subflows."""
