"""The kernel layer: small modules that each know one kernel interface, and nothing of policy."""
