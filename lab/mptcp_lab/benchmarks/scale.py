"""Ten thousand clients: memory of both services, and how long a restart and the removal of all rates take.

The connections exist only as frames (`crowd`), which the sniffer captures. The proxy's kernel does not know them, so
`sniffer.kernel_view` is off. With `--real` the proxy's kernel has the connections. Then figures show how soon a
restarted sniffer has found them in the kernel list, and what accounting, metrics, `top` and the page cost.
"""

from __future__ import annotations

import resource
import selectors
import socket
import sys
import time
from contextlib import ExitStack, suppress
from ipaddress import IPv4Network
from statistics import median
from typing import TYPE_CHECKING, Final

from mptcp_lab.benchmarks import real_crowd
from mptcp_lab.benchmarks.crowd import NETWORKS
from mptcp_lab.benchmarks.measure import PORT, command_line, cpu_seconds, resident_mib, unshaped, write_json
from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.lab_errors import LabError
from mptcp_lab.services import Services
from mptcp_lab.topology import ClientSpec, Lab, build
from mptcp_lab.traffic import start_pour, start_server
from mptcp_throttle.model import AccessNetwork, Per, RateKind
from mptcp_throttle.rpc import RpcError
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mptcp_lab.process import Process
    from mptcp_throttle.rpc import Json

_POLL_SECONDS: Final = 0.2
_PATIENCE_SECONDS: Final = 300.0
_OTHER_FILES: Final = 100
_LOOKS: Final = 30
_ANSWER_SECONDS: Final = 10.0
_VIEWERS: Final = 10
_ROWS: Final = 50
_LIST_SECONDS: Final = 2.0


def _networks(cap: Rate | None) -> tuple[AccessNetwork, ...]:
    wifi, ethernet = ((IPv4Network(NETWORKS[name]),) for name in ("wifi", "ethernet"))
    return (
        AccessNetwork("wifi", wifi, 1, {}, Per.CLIENT),
        AccessNetwork("ethernet", ethernet, 2, {} if cap is None else {RateKind.CAP: cap}, Per.CLIENT),
    )


def measure(
    connections: int, per_client: int, rate: int, *, throttled: bool, classifier: str | None = None
) -> dict[str, Json]:
    """The figures of `connections`, of two subflows each, opened at `rate` frames per second; capped if `throttled`."""
    with build(unshaped(ClientSpec(families=(4,)))) as lab:
        # Without a listening socket the daemon has nothing to pace.
        start_pour(lab.proxy, PORT)
        before = kernel_state(lab.proxy)
        services = Services(
            lab.proxy,
            _networks(Rate(1_000_000) if throttled else None),
            sniffer={"kernel_view": False},
            daemon={} if classifier is None else {"classifier": classifier},
        )
        sniffer, daemon = services.start_sniffer(), services.start_daemon()
        services.wait_ready()
        with ExitStack() as stack:
            stack.callback(services.stop)
            figures = _fill(lab, services, (sniffer, daemon), (connections, per_client), rate, throttled=throttled)
            filled_mib = figures["daemon_mib"]
            figures |= _killed_and_stopped(services, daemon, connections, throttled=throttled)
            figures["daemon_mib"] = max(filled_mib, figures["daemon_mib"])
            figures["left_behind"] = sum(before[what] != now for what, now in kernel_state(lab.proxy).items())
            daemon = services.start_daemon()
            _until(services, daemon, connections, throttled=throttled)
            sniffer.kill()
            figures["sniffer_gone_lifted_seconds"] = _until(services, daemon, 0, throttled=throttled)
    figures["together_mib"] = figures["sniffer_mib"] + figures["daemon_mib"]
    return _rounded(figures)


def measure_real(connections: int, per_client: int, rate: int) -> dict[str, Json]:
    """The figures of `connections` real ones with two subflows each, opened at `rate` per second."""
    # Programs started from here inherit the limit, and have a socket for each connection.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if connections + _OTHER_FILES > most:
        raise LabError(f"--connections {connections}: this machine allows {most - _OTHER_FILES} (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with build(unshaped(ClientSpec(families=(4,)))) as lab:
        start_server(lab.proxy, PORT)
        client = lab.client
        client.sysctl({"net/ipv4/ip_local_port_range": "1024 65535"})
        client.ip([f"route add local {real_crowd.NETWORK} dev lo"])
        lab.router.ip([f"route add {real_crowd.NETWORK} via {client.address(lab.topology.ethernet, 4)}"])
        services = Services(lab.proxy, _networks(Rate(1_000_000)))
        sniffer, daemon = services.start_sniffer(), services.start_daemon()
        services.wait_ready()
        with ExitStack() as stack:
            stack.callback(services.stop)
            numbers = map(str, (PORT, rate, connections // per_client, per_client))
            arguments = ("-m", "mptcp_lab.benchmarks.real_crowd", str(lab.proxy_address(4)), *numbers)
            crowd = client.start("crowd", sys.executable, *arguments)
            crowd.wait_until(lambda: "open" in crowd.log_text(), "open", _PATIENCE_SECONDS)
            _until(services, daemon, connections, throttled=True)
            figures: dict[str, Json] = {"real_connections": connections, **_cost_of_looking(services, daemon)}
            figures |= _cost_of_page(services, daemon)
            # Once more: for a while after the connections were opened, the daemon has more to do.
            figures["unwatched_later_cpu_percent"] = _cpu_percent_while(daemon, lambda: None)[0]
            epoch = services.status()["sniffer"]["epoch"]
            sniffer.kill()
            sniffer = services.start_sniffer()
            figures["sniffer_resync_seconds"] = _until(services, daemon, connections, throttled=True, after=epoch)
            figures |= _killed_and_stopped(services, daemon, connections, throttled=True)
            figures["sniffer_mib"] = resident_mib(sniffer.pid)
    return _rounded(figures)


def _killed_and_stopped(services: Services, daemon: Process, connections: int, *, throttled: bool) -> dict[str, float]:
    """What a daemon that follows a killed daemon takes until it knows all connections, and to stop then."""
    daemon.kill()
    daemon = services.start_daemon()
    resync = _until(services, daemon, connections, throttled=throttled)
    mib, began = resident_mib(daemon.pid), time.monotonic()
    daemon.stop(_PATIENCE_SECONDS)
    return {"daemon_resync_seconds": resync, "daemon_mib": mib, "stop_seconds": time.monotonic() - began}


def _rounded(figures: Mapping[str, Json]) -> dict[str, Json]:
    return {name: round(value, 2) if isinstance(value, float) else value for name, value in figures.items()}


def _cost_of_looking(services: Services, daemon: Process) -> dict[str, Json]:
    """Percent of a core that the daemon uses without viewers, and while Prometheus or `top` asks each second.

    Also the median and the longest time until an answer, in ms.
    """

    def scrape() -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(str(services.sockets.metrics))
            connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            while connection.recv(65536):
                pass

    figures: dict[str, Json] = {"unwatched_cpu_percent": _cpu_percent_while(daemon, lambda: None)[0]}
    viewers: dict[str, Callable[[], object]] = {
        "prometheus": scrape,
        "top": lambda: services.ask("top", 10, "sent", ""),
    }
    for name, look in viewers.items():
        percent, durations = _cpu_percent_while(daemon, look)
        figures[f"{name}_looks_cpu_percent"] = percent
        figures |= {f"{name}_answer_ms": median(durations), f"{name}_longest_ms": max(durations)}
    return figures


def _cpu_percent_while(daemon: Process, look: Callable[[], object]) -> tuple[float, list[float]]:
    """Percent of a core that the daemon uses while it is asked each second, and the milliseconds of each answer."""
    durations, began, used = [], time.monotonic(), cpu_seconds(daemon.pid)
    for second in range(_LOOKS):
        time.sleep(max(0.0, began + second - time.monotonic()))
        asked = time.monotonic()
        look()
        durations.append(1000 * (time.monotonic() - asked))
    time.sleep(max(0.0, began + _LOOKS - time.monotonic()))
    return 100 * (cpu_seconds(daemon.pid) - used) / (time.monotonic() - began), durations


def _cost_of_page(services: Services, daemon: Process) -> dict[str, Json]:
    """Percent of a core that page and daemon use while `_VIEWERS` browsers follow the page, and the page's memory.

    Each follows the stream, and asks for other rows of the list of clients every `_LIST_SECONDS`.
    """
    web = services.start_web()
    with ExitStack() as stack, selectors.DefaultSelector() as sockets:

        def connected() -> socket.socket:
            viewer = stack.enter_context(socket.socket(socket.AF_UNIX))
            viewer.connect(str(services.sockets.web))
            sockets.register(viewer, selectors.EVENT_READ, viewer.recv)
            return viewer

        for _ in range(_VIEWERS):
            _get(connected(), "/api/events")
        lists = [connected() for _ in range(_VIEWERS)]

        def read_for(seconds: float) -> int:
            received, end, due = 0, time.monotonic() + seconds, time.monotonic()
            while (left := end - time.monotonic()) > 0:
                if time.monotonic() >= due:
                    due += _LIST_SECONDS
                    for place, viewer in enumerate(lists):
                        _get(viewer, f"/api/clients?number={_ROWS}&from={_ROWS * place}")
                received += sum(len(key.data(65536)) for key, _ in sockets.select(min(left, due - time.monotonic())))
            return received

        read_for(2.0)  # the start of the service is not part of it
        used, began = (cpu_seconds(web.pid), cpu_seconds(daemon.pid)), time.monotonic()
        received = read_for(_LOOKS)
        seconds = time.monotonic() - began
        figures: dict[str, Json] = {
            "page_viewers": _VIEWERS,
            "page_cpu_percent": 100 * (cpu_seconds(web.pid) - used[0]) / seconds,
            "page_daemon_cpu_percent": 100 * (cpu_seconds(daemon.pid) - used[1]) / seconds,
            "page_kb_per_viewer_and_second": received / 1000 / _VIEWERS / seconds,
            "page_mib": resident_mib(web.pid),
        }
    web.stop()
    return figures


def _get(viewer: socket.socket, path: str) -> None:
    viewer.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())


def _fill(
    lab: Lab, services: Services, both: tuple[Process, Process], size: tuple[int, int], rate: int, *, throttled: bool
) -> dict[str, Json]:
    (sniffer, daemon), (connections, per_client) = both, size
    cpu = cpu_seconds(sniffer.pid), cpu_seconds(daemon.pid)
    numbers = (PORT, rate, connections // per_client, per_client)
    began = time.monotonic()
    arguments = ("proxy", str(lab.proxy_address(4)), *map(str, numbers))
    crowd = lab.router.start("crowd", sys.executable, "-m", "mptcp_lab.benchmarks.crowd", *arguments)
    crowd.wait(_PATIENCE_SECONDS)
    opened = time.monotonic() - began
    dropped = services.ask_sniffer("status")["dropped"]
    if dropped:
        raise LabError(f"crowd: {dropped} of {6 * connections} frames dropped; use a lower --rate")
    behind = _until(services, daemon, connections, throttled=throttled)
    return {
        "connections": connections,
        "clients": connections // per_client,
        "opened_seconds": opened,
        "throttled_after_seconds": behind,
        "sniffer_cpu_seconds": cpu_seconds(sniffer.pid) - cpu[0],
        "daemon_cpu_seconds": cpu_seconds(daemon.pid) - cpu[1],
        "sniffer_mib": resident_mib(sniffer.pid),
        "daemon_mib": resident_mib(daemon.pid),
    }


def _until(
    services: Services, daemon: Process, connections: int, *, throttled: bool, after: str | None = None
) -> float:
    """Seconds until the daemon has `connections`, and with `throttled` a subflow of each in the kernel.

    `after` is an epoch of the sniffer's table that does not count.
    """
    began = time.monotonic()

    def reached() -> bool:
        with suppress(RpcError):
            status = services.status()
            table, in_kernel = status["sniffer"], status["daemon"]["capped_subflows"]
            known = table["connections"] if table["epoch"] != after else -1
            return bool(known == connections and in_kernel == (connections if throttled else 0))
        return False

    # Not as often as usual: with many connections an answer takes the daemon long.
    daemon.wait_until(reached, f"following {connections} connections", _PATIENCE_SECONDS, poll=_POLL_SECONDS)
    return time.monotonic() - began


def main() -> None:
    """Print a column per number of connections."""
    parser = command_line("scale", __doc__)
    parser.add_argument("--connections", type=int, nargs="+", default=[10_000, 50_000], help="default: 10000 50000")
    parser.add_argument("--per-client", type=int, default=5, help="connections of a client; default: %(default)s")
    parser.add_argument("--rate", type=int, default=6000, help="frames per second; default: %(default)s")
    parser.add_argument(
        "--free", action="store_true", help="throttle no client: the cost of following connections alone"
    )
    parser.add_argument("--classifier", help="daemon.classifier; default: as configured")
    parser.add_argument("--real", action="store_true", help="real connections, `rate` of them per second")
    options = parser.parse_args()
    columns = [
        measure_real(connections, options.per_client, options.rate)
        if options.real
        else measure(
            connections, options.per_client, options.rate, throttled=not options.free, classifier=options.classifier
        )
        for connections in options.connections
    ]
    for name in columns[0]:
        print(f"{name:28}" + "".join(f" {column[name]:>10}" for column in columns))
    write_json(options.json, columns)


if __name__ == "__main__":
    main()
