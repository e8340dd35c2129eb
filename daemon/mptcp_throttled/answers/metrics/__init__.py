"""The metrics of a snapshot and of this process, and where they are served."""
