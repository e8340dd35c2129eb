"""Makes the kernel match the plan, and tries again what it refuses. Knows the kernel only as a protocol."""
