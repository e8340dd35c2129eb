"""`mptcp-sniffer`: the command line and the composition of the service."""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from mptcp_sniffer.offline import print_capture
from mptcp_sniffer.reload import Reload
from mptcp_sniffer.sniffer import Sniffer
from mptcp_throttle import logs, service
from mptcp_throttle.command_line import command_line
from mptcp_throttle.config.load import load_config
from mptcp_throttle.model import Trust


def parser() -> argparse.ArgumentParser:
    """The command line; the manual page is made from it."""
    made = command_line("mptcp-sniffer", "Publish the MPTCP subflows of a proxy.")
    offline = made.add_argument_group("reading a capture file instead of an interface; needs no configuration")
    offline.add_argument(
        "--read", type=Path, metavar="FILE", help="pcap or pcapng: Ethernet, Linux cooked, raw IP; tunnels too"
    )
    offline.add_argument("--ports", type=_ports, default=(8080,), metavar="PORT,...", help="proxy ports; default: 8080")
    offline.add_argument(
        "--trust", type=Trust, choices=list(Trust), default=Trust.HANDSHAKE, help="as in the configuration"
    )
    offline.add_argument(
        "--json", action="store_true", help="print connections, events and counters instead of one line per event"
    )
    return made


def _ports(text: str) -> tuple[int, ...]:
    ports = tuple(int(port) for port in text.split(","))
    if not all(0 < port < 65536 for port in ports):
        raise ValueError
    return ports


def _serve(path: Path) -> None:
    config = load_config(path)
    service.prefer_latency()
    service.return_freed_memory()
    logs.configure()
    logs.set_level(config.log_level)
    stop = threading.Event()
    service.on_stop_signal(stop.set)
    reload = Reload(config, lambda: load_config(path))
    service.on_reload_signal(reload)
    with service.single_instance(config.sockets.sniffer.parent, "mptcp-sniffer", config.socket_group):
        Sniffer(config, reload).run(stop)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service or read a capture file; the exit status is one of those in `mptcp_throttle.errors`."""
    options = parser().parse_args(arguments)
    if options.read is not None:
        return service.run(lambda: print_capture(options.read, options.ports, options.trust, as_json=options.json))
    return service.run(lambda: _serve(options.config))


if __name__ == "__main__":
    sys.exit(main())
