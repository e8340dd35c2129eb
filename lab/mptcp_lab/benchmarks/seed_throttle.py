"""The seed's way from JOIN to cap, for comparison.

`python -m mptcp_lab.benchmarks.seed_throttle sniff|steer PROXY PORT...`: two programs. `sniff` dissects all that
passes `tcp and port PORT` with Scapy; at an MP_JOIN it serves the client's addresses over JSON-RPC, and stops serving
once they were fetched. `steer` tries until somebody serves, fetches, and runs `iptables` and `tc`, whose output it
searches for what is there already. It prints the time stamp of each JOIN and the time at which it was done with it.

Kinder than the seed was: no `sudo`, an MP_JOIN is found wherever it is in the options, `steer` rests 10 ms between
tries. `tc filter ... bpf` stands for `fw`, which not every kernel has.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Final

from jsonrpclib.jsonrpc import ServerProxy
from jsonrpclib.SimpleJSONRPCServer import SimpleJSONRPCServer
from scapy.layers.inet import IP, TCP
from scapy.packet import Packet
from scapy.sendrecv import sniff

_RPC: Final = ("localhost", 8000)
_MPTCP: Final = 30
_JOIN: Final = 1
_REST_SECONDS: Final = 0.01
# mark -> class 1:mark, as `fw` does.
_FILTER: Final = "4,32 0 0 4294963220,21 1 0 0,68 0 0 65536,22 0 0 0"
_MARKS: Final = (4, 7)


class _Sniffer:
    def __init__(self) -> None:
        self._primary = ""

    def look(self, packet: Packet) -> None:
        if TCP not in packet or packet[TCP].flags != "S":
            return
        for kind, value in packet[TCP].options:
            if kind == _MPTCP and value[0] >> 4 == _JOIN:
                self._serve(packet[IP].src, backup=bool(value[0] & 1), at=float(packet.time))
            elif kind == _MPTCP:
                self._primary = packet[IP].src

    def _serve(self, secondary: str, *, backup: bool, at: float) -> None:
        SimpleJSONRPCServer.allow_reuse_address = True
        server = SimpleJSONRPCServer(_RPC, logRequests=False)
        server.register_function(lambda: self._primary, "primary")
        server.register_function(lambda: secondary, "secondary")
        server.register_function(lambda: [backup, at], "flag")
        server.register_function(lambda: threading.Thread(target=server.shutdown).start(), "kill")
        server.serve_forever(0.01)
        server.server_close()


def _steer(proxy: str, ports: list[str]) -> None:
    while True:
        with suppress(OSError):
            remote = ServerProxy("http://{}:{}".format(*_RPC))
            addresses = remote.primary(), remote.secondary()
            backup, at = remote.flag()
            remote.kill()
            _enforce(proxy, ports, addresses, backup=backup)
            print(at, time.time(), flush=True)
        time.sleep(_REST_SECONDS)


def _enforce(proxy: str, ports: list[str], addresses: tuple[str, ...], *, backup: bool) -> None:
    rules = _run("iptables-legacy -t mangle -n -L OUTPUT")
    for address, mark in zip(addresses, _MARKS, strict=True):
        for port in ports:
            if not any(address in line and f"spt:{port}" in line for line in rules.splitlines()):
                _run(
                    f"iptables-legacy -t mangle -A OUTPUT -p tcp -s {proxy} --sport {port} -d {address}"
                    f" -j MARK --set-mark {mark}"
                )
    qdisc = _run("tc qdisc show dev eth0")
    if backup:
        _run("tc qdisc replace dev eth0 root pfifo")
    elif "htb" not in qdisc:
        _run("tc qdisc replace dev eth0 root handle 1: htb default 2")
        for minor, rate in ((2, "10gbit"), (4, "10gbit"), (7, "10gbit")):
            _run(f"tc class add dev eth0 parent 1: classid 1:{minor} htb rate {rate} ceil {rate}")
        _run("tc filter add dev eth0 parent 1: protocol all bpf bytecode", _FILTER, "flowid", "1:2")


def _run(command: str, *words: str) -> str:
    return subprocess.run([*command.split(), *words], check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    role, proxy, *ports = sys.argv[1:]
    if role == "sniff":
        print("capturing", flush=True)
        sniff(
            iface="eth0",
            filter="tcp and (" + " or ".join(f"port {port}" for port in ports) + ")",
            prn=_Sniffer().look,
            store=False,
        )
    else:
        _steer(proxy, ports)
