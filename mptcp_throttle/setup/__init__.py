"""`mptcp-throttle setup`: looks at the host, and proposes a configuration with a reason for each value.

| module | |
|---|---|
| `host_facts` | what is known about the host, as frozen values |
| `collect_facts`, `listening` | ask the kernel, /proc and systemd's files; they change nothing |
| `proposal` | facts to a proposal, or a refusal: a pure function |
| `port_choice`, `interface_choice`, `root_qdisc`, `proposal_notes` | parts of it |
| `yaml_edit`, `proposal_text` | the proposal in a configuration file |
| `unit_files`, `server_drop_in` | how a service is started, and the drop-in that starts it with MPTCP |
| `network_evidence`, `network_groups` | which addresses the sniffer sees, and which networks they may be in |
| `network_files` | the files of these |
| `kept_files` | writes files; what others have edited is kept, or backed up |
"""
