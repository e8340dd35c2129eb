"""A client whose path manager is a program: it opens several subflows from one address, as `ndiffports` once did.

`python more_subflows.py PROXY PORT URL ADDRESS...` downloads URL over one connection. It opens a further subflow from
each ADDRESS, with a port of its own; an address may be repeated. The path manager of the client's kernel must be
`userspace`.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyroute2.netlink import NLM_F_ACK, NLM_F_REQUEST
from pyroute2.netlink.generic import GenericNetlinkSocket
from pyroute2.netlink.generic.mptcp import MPTCP_GENL_NAME, mptcp_msg

from mptcp_lab.origin import endless
from mptcp_lab.squid import PORT
from mptcp_lab.traffic import IPPROTO_MPTCP

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proxy_world import ProxyWorld

    from mptcp_lab.process import Process
    from mptcp_lab.topology import Address

# include/uapi/linux/mptcp.h, mptcp_pm.h and linux/socket.h
_SOL_MPTCP, _MPTCP_INFO, _TOKEN_OFFSET = 284, 1, 12
_SUBFLOW_CREATE: Final = 10
_NESTED: Final = 0x8000


class _Request(mptcp_msg):  # type: ignore[misc]  # pyroute2 has no types
    nla_map = (
        *mptcp_msg.nla_map,
        ("MPTCP_PM_ATTR_TOKEN", "uint32"),
        ("MPTCP_PM_ATTR_LOC_ID", "uint8"),
        ("MPTCP_PM_ATTR_ADDR_REMOTE", "pm_addr"),
    )


def _address(address: str, **attributes: int) -> dict[str, object]:
    given = {"family": socket.AF_INET, "addr4": address, **attributes}
    return {"attrs": [(mptcp_msg.pm_addr.name2nla(name), value) for name, value in given.items()]}


def _open_subflow(token: int, own: str, identifier: int, proxy: str, port: int) -> None:
    request = _Request()
    request["cmd"], request["version"] = _SUBFLOW_CREATE, 1
    request["attrs"] = [
        ("MPTCP_PM_ATTR_TOKEN", token),
        ("MPTCP_PM_ATTR_ADDR", _address(own, id=identifier), _NESTED),
        ("MPTCP_PM_ATTR_ADDR_REMOTE", _address(proxy, port=port), _NESTED),
    ]
    with GenericNetlinkSocket() as path_manager:
        path_manager.bind(MPTCP_GENL_NAME, _Request)
        path_manager.nlm_request(request, msg_type=path_manager.prid, msg_flags=NLM_F_REQUEST | NLM_F_ACK)


def _download(proxy: str, port: int, url: str, addresses: list[str]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP) as connection:
        connection.connect((proxy, port))
        connection.sendall(f"GET {url} HTTP/1.1\r\nHost: origin\r\n\r\n".encode())
        connection.recv(1)
        info = connection.getsockopt(_SOL_MPTCP, _MPTCP_INFO, _TOKEN_OFFSET + 4)
        token = int.from_bytes(info[_TOKEN_OFFSET:], sys.byteorder)
        identifiers = {address: number for number, address in enumerate(dict.fromkeys(addresses), 1)}
        for address in addresses:
            _open_subflow(token, address, identifiers[address], proxy, port)
        while connection.recv(1 << 18):
            pass


def download_with_subflows(world: ProxyWorld, addresses: Iterable[Address]) -> Process:
    """A download over Ethernet that does not end, and a further subflow from each of these addresses."""
    url = f"http://{world.lab.origin_address(4)}/{endless(world.origin).name}"
    arguments = (str(world.lab.proxy_address(4)), str(PORT), url, *map(str, addresses))
    return world.lab.client.start("more-subflows", sys.executable, Path(__file__), *arguments)


if __name__ == "__main__":
    _download(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:])
