"""`mptcp-throttle-web`: a page that shows what the daemon says, and why. It has no rights of its own."""
