"""The proxy's sockets, and the program on its cgroup that paces them."""
