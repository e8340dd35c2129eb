"""What subflows carry: the kernel's totals of their sockets, summed up per access network and client."""
