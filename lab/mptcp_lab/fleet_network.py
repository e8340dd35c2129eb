"""One server of Valkey for several proxies, which reach it by TLS; each proxy is a host of its own lab."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mptcp_lab import namespaces
from mptcp_lab.host import Host
from mptcp_lab.process import run
from mptcp_lab.valkey_server import Authority, ValkeyServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

INTERFACE: Final = "fleet0"
"""The interface of each proxy towards the server."""
_SERVER: Final = "198.51.100.1"
_SECRET: Final = "the same for all proxies"  # noqa: S105


@dataclass(frozen=True)
class FleetNetwork:
    """The server, and what proxies need in order to use it."""

    server: ValkeyServer
    authority: Authority
    key_file: Path

    def settings(self, name: str) -> dict[str, object]:
        """The section `fleet` of a proxy's configuration."""
        return {
            "url": self.server.url_of(name),
            "name": name,
            "key_file": str(self.key_file),
            "tls": {
                "ca": str(self.authority.certificate("ca")),
                "certificate": str(self.authority.certificate("proxy")),
                "key": str(self.authority.key("proxy")),
            },
        }


@contextmanager
def fleet_network(proxies: Sequence[Host], directory: Path, *options: str) -> Iterator[FleetNetwork]:
    """A server that runs, with these options, on a host of its own which all `proxies` reach."""
    authority = Authority.made_in(directory / "authority")
    authority.sign("server", f"IP:{_SERVER}")
    authority.sign("proxy", "DNS:proxy")
    key_file = directory / "fleet.key"
    key_file.write_text(f"{_SECRET}\n")
    with ExitStack() as stack:
        prefix = stack.enter_context(namespaces.owned())
        run(["ip", "netns", "add", f"{prefix}valkey"])
        host = Host("valkey", f"{prefix}valkey", directory / "valkey")
        stack.callback(host.stop)
        host.ip(["link set lo up", "link add bridge0 type bridge", f"address add {_SERVER}/24 dev bridge0"])
        host.ip(["link set bridge0 up"])
        for place, proxy in enumerate(proxies, 1):
            host.ip([f"link add port{place} type veth peer name {INTERFACE} netns {proxy.namespace}"])
            host.ip([f"link set port{place} master bridge0", f"link set port{place} up"])
            proxy.ip([f"address add 198.51.100.{10 + place}/24 dev {INTERFACE}", f"link set {INTERFACE} up"])
        server = ValkeyServer(directory / "server", *options, host=host, address=_SERVER, authority=authority)
        server.start()
        stack.callback(server.stop)
        yield FleetNetwork(server, authority, key_file)
