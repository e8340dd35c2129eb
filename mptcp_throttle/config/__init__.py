"""The configuration: what may stand in it, how it is read, and what differs between two."""
