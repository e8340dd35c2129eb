"""What it costs to add one subflow to our nftables map: libnftables, pyroute2 and our own messages, in turns.

The map has many subflows. The host may have a firewall, with a set of prefixes as those of block lists are. Times are
milliseconds of processor time, in user and in kernel mode.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from ipaddress import IPv4Address
from itertools import count
from statistics import median
from typing import Final, NamedTuple

from pyroute2.netlink import NLM_F_CREATE, NLM_F_REQUEST
from pyroute2.netlink.nfnetlink import nftsocket
from pyroute2.nftables.main import NFTables

from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_lab.namespaces import in_namespace
from mptcp_lab.topology import Topology, build
from mptcp_throttle.model import OWN_TABLE, Endpoint, FourTuple
from mptcp_throttled.kernel.classes.nft import NftClassifier
from mptcp_throttled.kernel.classes.nft_messages import MAP
from mptcp_throttled.vocabulary.class_ids import classid

_PROXY: Final = Endpoint(IPv4Address("10.3.0.2"), 8080)
_FIRST_CLIENT: Final = IPv4Address("10.64.0.1")
_MINOR: Final = 2
_CLASS_TEXT: Final = f"4d50:{_MINOR:x}"


class Figures(NamedTuple):
    """Milliseconds; the greatest of these is `worst`."""

    way: str
    subflows: int
    prefixes: int
    median: float
    worst: float


class _Libnftables:
    """libnftables through ctypes, as Debian's python3-nftables uses it."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libnftables.so.1")
        self._library.nft_ctx_new.restype = ctypes.c_void_p
        self._library.nft_run_cmd_from_buffer.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
        self._context = self._library.nft_ctx_new(0)

    def run(self, command: str) -> None:
        if self._library.nft_run_cmd_from_buffer(self._context, command.encode()) != 0:
            raise OSError(f"libnftables: {command[:80]}")

    def add(self, ends: FourTuple) -> None:
        key = f"{ends.client.address} . {ends.client.port} . {ends.proxy.address} . {ends.proxy.port}"
        self.run(f"add element ip {OWN_TABLE} {MAP} {{ {key} : {_CLASS_TEXT} }}")


class _Pyroute2:
    """Its netlink messages; it has no function for maps, and does not read what the kernel answers to a batch."""

    def __init__(self) -> None:
        self._socket = NFTables()

    def add(self, ends: FourTuple) -> None:
        client, proxy = ends.client, ends.proxy
        key = b"".join(
            part for end in (client, proxy) for part in (end.address.packed, end.port.to_bytes(2, "big"), bytes(2))
        )
        element = {
            "attrs": [
                ("NFTA_SET_ELEM_KEY", {"attrs": [("NFTA_DATA_VALUE", key)]}),
                ("NFTA_SET_ELEM_DATA", {"attrs": [("NFTA_DATA_VALUE", classid(_MINOR).to_bytes(4, "little"))]}),
            ]
        }
        message = nftsocket.nft_set_elem_list_msg()
        message["attrs"] = [
            ("NFTA_SET_ELEM_LIST_TABLE", OWN_TABLE),
            ("NFTA_SET_ELEM_LIST_SET", MAP),
            ("NFTA_SET_ELEM_LIST_ELEMENTS", [element]),
        ]
        self._socket.request_put(message, nftsocket.NFT_MSG_NEWSETELEM, NLM_F_REQUEST | NLM_F_CREATE)


def measure(subflows: int, prefixes: int, repeats: int) -> Iterator[Figures]:
    """Add subflows to a map that has so many, beside a set of somebody else with so many prefixes."""
    marking, library, theirs = NftClassifier(), _Libnftables(), _Pyroute2()
    library.run("flush ruleset")
    if prefixes:
        library.run(_firewall(prefixes))
    clients = (Endpoint(_FIRST_CLIENT + number, 40_000) for number in count())
    new = (FourTuple(client, _PROXY) for client in clients)
    marking.make(4, {next(new): _MINOR for _ in range(subflows)})
    ways: dict[str, Callable[[FourTuple], None]] = {
        "libnftables": library.add,
        "pyroute2": theirs.add,
        "ours": lambda ends: marking.change(4, {ends: _MINOR}, {}),
    }
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(repeats):
        for way, add in ways.items():
            ends = next(new)
            began = time.process_time()
            add(ends)
            times[way].append((time.process_time() - began) * 1e3)
    added = len(marking.read()[4].assignments) - subflows
    if added != repeats * len(ways):
        raise OSError(f"{added} subflows added instead of {repeats * len(ways)}")
    for way, taken in times.items():
        yield Figures(way, subflows, prefixes, median(taken), max(taken))


def _firewall(prefixes: int) -> str:
    # With gaps, so that none are merged.
    listed = ", ".join(f"{IPv4Address(2**28 + number * 256)}/25" for number in range(prefixes))
    elements = f"elements = {{ {listed} }};"
    chain = "type filter hook input priority 0; ip saddr @blocked drop;"
    blocked = f"set blocked {{ type ipv4_addr; flags interval; {elements} }}"
    return f"table inet firewall {{ {blocked}; chain input {{ {chain} }}; }}"


def main() -> None:
    """Print a line per way, number of subflows and number of prefixes."""
    parser = command_line("nft-libraries", __doc__)
    parser.add_argument("--subflows", type=int, nargs="+", default=[0, 10_000], help="default: 0 10000")
    parser.add_argument("--prefixes", type=int, nargs="+", default=[0, 20_000], help="default: 0 20000")
    parser.add_argument("--repeats", type=int, default=50, help="of each way; default: %(default)s")
    options = parser.parse_args()
    rows = []
    print("| add one subflow | subflows | prefixes of others | ms: median | worst |")
    print("|---|---|---|---|---|", flush=True)
    with build(Topology()) as lab, in_namespace(lab.proxy.namespace):
        for prefixes in options.prefixes:
            for subflows in options.subflows:
                for row in measure(subflows, prefixes, options.repeats):
                    rows.append(row._asdict())
                    figures = f"{row.median:.3f} | {row.worst:.2f}"
                    print(f"| {row.way} | {row.subflows} | {row.prefixes} | {figures} |", flush=True)
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
