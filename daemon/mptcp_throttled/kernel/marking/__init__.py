"""Leads the packets of throttled subflows to their HTB classes.

`back_end` has the contract, `choice` the choice; each back end is one module (`sockets`, `sets`, `rules`), and another
one (nftables, say) is one more. `iptables_marking` is what `sets` and `rules` share, on top of `iptables` (our chain)
and `ipset` (our sets).
"""
