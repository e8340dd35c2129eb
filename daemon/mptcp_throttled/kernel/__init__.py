"""The kernel layer: each module knows one kernel interface and no policy; `linux_kernel` is what the daemon uses."""
