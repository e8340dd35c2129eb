"""The control loop and what reaches it: requests, the sniffer's table, configuration and operator state."""
