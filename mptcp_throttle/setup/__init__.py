"""`mptcp-throttle setup`: looks at the host, and proposes a configuration with a reason for each value.

| module | |
|---|---|
| `host_facts` | what is known about the host, as frozen values |
| `collect_facts` | asks the kernel, /proc and programs for them; it changes nothing |
| `nat_rules` | which rules of iptables and nftables send connections elsewhere: pure functions |
| `proposal`, `choices` | facts to a proposal, or a refusal: pure functions |
| `proposal_text` | the proposal in a configuration file |
| `server_drop_in` | how systemd starts a service, and the drop-in that starts it with MPTCP |
| `network_evidence`, `network_groups` | which addresses the sniffer sees, and which networks they may be in |
| `network_files` | the files of these |
| `kept_files` | the files of the package; writes files; what the operator has edited is kept, or backed up |
"""
