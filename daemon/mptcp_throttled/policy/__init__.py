"""Which subflow is throttled to which rate, and why. Pure functions and values; nothing here knows the kernel."""
