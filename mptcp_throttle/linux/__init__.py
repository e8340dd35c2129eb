"""Kernel interfaces that more than one of our programs uses: netlink, inet_diag, BPF."""
