"""What several proxies share by a server: totals of budgets and rates, each in a thread of its own."""
