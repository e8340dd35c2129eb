"""Our own chains and tables of iptables and nftables: their names and priorities."""

from __future__ import annotations

from typing import Final

OWN_CHAIN: Final = "MPTCP-THROTTLE"
"""The name of our iptables chain."""

OWN_TABLE: Final = "mptcp-throttle"
"""The name of our nftables tables, of the families ip and ip6."""

BEFORE_NAT: Final = -150
"""The priority of our chains in postrouting where subflows have the addresses of their sockets: NF_IP_PRI_MANGLE."""

AFTER_NAT: Final = 101
"""The same where subflows have the addresses that are on the wire: what NAT undoes, it has undone at NF_IP_PRI_NAT_SRC.

Both constants are in include/uapi/linux/netfilter_ipv4.h. The kernel translates at that priority, whatever that of a
chain of type nat is (nf_nat_register_fn, net/netfilter/nf_nat_core.c).
"""
