"""The lab: real MPTCP hosts, a real Squid and a real origin server in network namespaces of their own.

`topology` builds the hosts; `squid`, `origin`, `download` and `services` run programs in them; `meter` and
`kernel_state` measure. The integration tests and `mptcp_lab.demo` are made of these.
"""
