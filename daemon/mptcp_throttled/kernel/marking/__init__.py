"""Leads the packets of throttled subflows to their HTB classes.

`back_end` has the contract, `choice` the choice; each back end is one module (`sockets`, `maps`, `sets`, `rules`), and
another one is one more. `packet_marking` has what the last three share, on top of `nft_tables` (our tables), `ipset`
(our sets) and `iptables` (our chain).
"""
