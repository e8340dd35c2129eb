"""The seed's capture, for comparison: Scapy's dissection of all that passes `tcp and port PORT`.

`python -m mptcp_lab.benchmarks.seed_sniffer INTERFACE PORT`
"""

from __future__ import annotations

import sys

from scapy.layers.inet import TCP
from scapy.packet import Packet
from scapy.sendrecv import sniff


def _look(packet: Packet) -> None:
    if TCP in packet and packet[TCP].flags.S:
        print(packet[TCP].options)


if __name__ == "__main__":
    interface, port = sys.argv[1:]
    print("capturing", flush=True)
    sniff(iface=interface, filter=f"tcp and port {port}", prn=_look, store=False)
