"""mptcp-throttled: pull -> policy -> plan -> reconcile -> kernel."""
