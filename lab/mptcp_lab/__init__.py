"""The lab: real MPTCP hosts, a real Squid and a real origin server in network namespaces of their own.

`topology` builds the hosts; `squid`, `origin`, `download` and `services` run programs in them; `oracle` and
`kernel_dump` measure. `scenario` runs whole experiments from YAML files, and `demo` is a set of them.
"""
