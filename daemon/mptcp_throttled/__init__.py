"""`mptcp-throttled`: throttles MPTCP subflows to the rates of their access networks.

One step of the loop, by package:

    control/source     what is new in the sniffer's table
    policy/            the terms of each network, and a decision for each subflow that the change concerns
    plan/              classes, class assignments and paces that these decisions ask for
    enforcing/         the operations that lead from the kernel's state to the plan, and what to try again
    kernel/            carries them out: HTB, classifiers, sockets, uplinks, discards; knows no policy
    control/loop       publishes what is applied now as a snapshot
    reporting/         logs and counts what has changed

Beside the loop: `observing/` compares what flows with what is applied, `accounting/` counts what was carried, and
`answers/` serves RPC and metrics from snapshots. `lifecycle/` starts and ends the daemon. `vocabulary/` has the values
that all of them share. Imports point down the table of folders in docs/contribute/architecture.md, never back up.
"""
