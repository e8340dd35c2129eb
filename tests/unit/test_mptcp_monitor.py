"""The oracle of the sniffer's tests tells the subflows of a connection apart, even on ports that are taken again."""

from mptcp_monitor import Opening, openings_of, priorities, read_events

from mptcp_lab.oracle import Ends

ENDS = Ends("0000002a", "10.2.0.2", 40000)

LOG = (
    "[   ESTABLISHED] token=0000002a remid=0 locid=0 saddr4=10.3.0.2 daddr4=10.2.0.2 sport=8080 dport=40000 backup=0",
    "[SF_ESTABLISHED] token=0000002a remid=1 locid=0 saddr4=10.3.0.2 daddr4=10.2.0.2 sport=8080 dport=40000 backup=1",
    "[       SF_PRIO] token=0000002a remid=1 locid=0 saddr4=10.3.0.2 daddr4=10.2.0.2 sport=8080 dport=40000 backup=0",
)


def test_kernel_events_of_a_port_taken_again_belong_to_the_second_subflow() -> None:
    subflows = read_events(LOG).subflows
    assert {opening.number: subflow.priorities for opening, subflow in subflows.items()} == {
        1: [False],
        2: [True, False],
    }


def test_sniffer_events_of_a_port_taken_again_belong_to_the_second_subflow() -> None:
    event = {"token": "0000002a", "client": "10.2.0.2", "client_port": 40000}
    kinds = (("established", False), ("established", True), ("backup-changed", False))
    events = [{**event, "event": kind, "backup": backup} for kind, backup in kinds]
    assert priorities(events) == {Opening(ENDS, 1): [False], Opening(ENDS, 2): [True, False]}


def test_established_subflows_on_the_same_ports_are_counted_apart() -> None:
    subflow = {"client": "10.2.0.2", "client_port": 40000, "established": True}
    failed = {**subflow, "established": False}
    history = {"connections": [{"token": "0000002a", "subflows": [subflow, failed, subflow]}]}
    assert openings_of(history) == {Opening(ENDS, 1): subflow, Opening(ENDS, 2): subflow}
