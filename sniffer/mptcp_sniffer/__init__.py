"""mptcp-sniffer: capture -> segment -> options -> tracker -> publish."""
