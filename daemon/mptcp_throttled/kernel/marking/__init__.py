"""Marks the packets of throttled subflows.

`back_end` has the contract and the choice; each back end is one module (`rules`, `sets`), and a new one (nftables, say)
is one more. `iptables_marking` is what the two share, on top of `iptables` (our chain) and `ipset` (our sets).
"""
