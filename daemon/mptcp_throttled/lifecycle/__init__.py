"""Begin and end of the daemon: put the parts together, take over from an earlier instance, leave nothing behind."""
