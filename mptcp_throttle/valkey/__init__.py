"""A client of Valkey and Redis that reads bounded answers only: for totals and policy of a fleet of proxies.

valkey-py takes ten times the processor time for a command, and stores whatever length a server announces:
docs/explanation/own-code.md.
"""
