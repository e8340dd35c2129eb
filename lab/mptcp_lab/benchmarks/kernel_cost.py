"""Processor time of services and kernel programs, for joins, downloads, a transfer and uploads.

Services: per joined connection and per download. Programs: per call, packet and GB.

* Downloads: 100 kB each through Squid, over a new connection, which the client closes 0.1 s later. It begins over
  Ethernet, which is capped once Wi-Fi has joined; the cap is higher than the rate. Squid's own time is printed, too. If
  the rate is too high, there are as many downloads as the machine can do.
* JOINs: as in `join-latency`, two subflows, of which the first is capped once the second has joined. Times of JOINs and
  downloads include their end, and what the services do periodically in that time.
* Transfer: two subflows, one of them with a cap that it does not reach. Its packets are those of both directions, and
  the discard-prevention programs see each of them.
* Uploads: one capped subflow each. The program for uplinks sees each packet that leaves the proxy; discards are not
  prevented.

`callbacks` are those of the sockets, in the time of whatever handles the packet. `iterators` run in the daemon for each
socket, and its time includes theirs. While this runs, the kernel measures its programs, which adds two readings of the
clock to each call.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from mptcp_lab import oracle
from mptcp_lab.benchmarks.join_latency import networks
from mptcp_lab.benchmarks.measure import PORT, command_line, cpu_seconds, unshaped, write_json
from mptcp_lab.lab_errors import LabError
from mptcp_lab.origin import start_origin
from mptcp_lab.process import descriptor_texts, wait_until
from mptcp_lab.sampler import Sampler
from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.squid import PORT as SQUID_PORT
from mptcp_lab.squid import start_squid
from mptcp_lab.topology import ClientSpec, Topology, build
from mptcp_lab.traffic import drain, program, start_pour, start_server
from mptcp_throttle.model import Per, RateKind
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from mptcp_lab.process import Process
    from mptcp_lab.topology import Lab
    from mptcp_throttle.model import AccessNetwork

# enum bpf_prog_type (include/uapi/linux/bpf.h)
_PROGRAM_TYPES: Final = {"3": "packet_programs", "13": "callbacks", "26": "iterators"}
_SERVICES: Final = ("sniffer", "daemon")
_DOWNLOAD_BYTES: Final = 100_000
_UPLINK_CAP: Final = Rate(100_000)
_STATS_RUN_TIME: Final = 0  # enum bpf_stats_type (include/uapi/linux/bpf.h)
_FIELD: Final = re.compile(r"^(\w+):\s*(\w+)$", re.MULTILINE)

Used = Counter[str]
"""Nanoseconds (`_ns`), calls and packets."""


def program_runs(descriptors: Iterable[str]) -> Used:
    """The calls of a process's programs and the time that they took, from the texts in its /proc/PID/fdinfo."""
    programs = {}
    for text in descriptors:
        fields = dict(_FIELD.findall(text))
        if "run_cnt" in fields and fields["prog_type"] in _PROGRAM_TYPES:
            programs[fields["prog_id"]] = fields  # a program may have several descriptors
    used = Used()
    for fields in programs.values():
        kind = _PROGRAM_TYPES[fields["prog_type"]]
        used.update({kind: int(fields["run_cnt"]), f"{kind}_ns": int(fields["run_time_ns"])})
    return used


@contextmanager
def _programs_measured() -> Iterator[None]:
    # The kernel stops measuring when the descriptor is closed, at the latest with this process.
    descriptor = ctypes.CDLL("libbpf.so.1", use_errno=True).bpf_enable_stats(_STATS_RUN_TIME)
    if descriptor < 0:
        raise LabError(f"the kernel does not measure programs: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        os.close(descriptor)


def _measure(
    lab: Lab,
    settings: Mapping[str, object],
    work: Callable[[Services], None],
    *,
    port: int = PORT,
    configured: Sequence[AccessNetwork] | None = None,
    before_work: Callable[[Services], None] = lambda _: None,
) -> Used:
    """What the services, their programs and the proxy's TCP have used for that work."""
    with ExitStack() as stack:
        of_networks = networks(joiner=False) if configured is None else configured
        services = stack.enter_context(Services(lab.proxy, of_networks, ports=(port,), daemon=settings))
        services.check_kernel_program()
        before_work(services)
        sampler = stack.enter_context(Sampler({"proxy": lab.proxy.namespace}, (), 1.0, 0.0, sockets=False))
        stack.enter_context(_programs_measured())
        began, before = time.monotonic(), _used(services)
        work(services)
        used = _used(services)
        used.subtract(before)
        used["elapsed_ns"] = round(1e9 * (time.monotonic() - began))
    counted = sampler.counters["proxy"]
    used.update(joins=counted["MPTcpExtMPJoinAckRx"], packets=counted["TcpInSegs"] + counted["TcpOutSegs"])
    return used


def _used(services: Services) -> Used:
    if services.sniffer is None or services.daemon is None:
        raise LabError("mptcp-sniffer and mptcp-throttled: not started")
    used = program_runs(descriptor_texts(services.daemon.pid))
    used["sniffer_ns"], used["daemon_ns"] = (_cpu_ns(process) for process in (services.sniffer, services.daemon))
    return used


def _cpu_ns(process: Process) -> int:
    return round(1e9 * cpu_seconds(process.pid))


def measure_joins(rate: float, seconds: float, settings: Mapping[str, object]) -> dict[str, Any]:
    """The costs of `rate` JOINs per second for `seconds`, until the services have forgotten them."""

    def work(services: Services) -> None:
        arguments = ("join", PORT, rate, seconds, lab.proxy_address(4))
        lab.client.run(*program(*arguments), timeout=seconds + 60)
        _wait_until_forgotten(lab, services, PORT)

    with build(unshaped(ClientSpec(families=(4,)))) as lab:
        start_server(lab.proxy, PORT)
        used = _measure(lab, settings, work)
    return {**settings, "joins_per_second": rate, "joins": used["joins"], **costs_of_joins(used)}


def _wait_until_forgotten(lab: Lab, services: Services, port: int) -> None:
    wait_until(lambda: not oracle.listed(lab.proxy, port), "all subflows ended")
    wait_until(lambda: not services.subflows(), "all subflows forgotten")


def measure_downloads(rate: float, seconds: float, settings: Mapping[str, object]) -> dict[str, Any]:
    """The costs of `rate` downloads per second for `seconds`, until the services have forgotten them."""
    used = Used()

    with build(unshaped(ClientSpec(families=(4,)))) as lab:
        squid, origin = start_squid(lab.proxy), start_origin(lab.origin)
        url = f"http://{lab.origin_address(4)}/{origin.add(_DOWNLOAD_BYTES).name}"

        def work(services: Services) -> None:
            used["proxy_ns"] -= _cpu_ns(squid)
            arguments = ("download", SQUID_PORT, rate, seconds, lab.proxy_address(4), url)
            result = json.loads(lab.client.run(*program(*arguments), timeout=seconds + 60).stdout)
            used.update(downloads=result["complete"], downloading_ns=round(1e9 * result["seconds"]))
            _wait_until_forgotten(lab, services, SQUID_PORT)
            used["proxy_ns"] += _cpu_ns(squid)

        used.update(_measure(lab, settings, work, port=SQUID_PORT))
    return {**settings, "downloads_per_second": rate, **costs_of_downloads(used)}


def costs_of_downloads(used: Used) -> dict[str, float]:
    """Downloads that were complete, the connections that were joined, and the processor time per download in ms."""
    downloads = max(used["downloads"], 1)
    milliseconds = {name: round(used[f"{name}_ns"] / downloads / 1e6, 2) for name in (*_SERVICES, "proxy")}
    return {
        "downloads": used["downloads"],
        "reached_per_second": round(1e9 * used["downloads"] / used["downloading_ns"], 1),
        "joins": used["joins"],
        **{f"{name}_ms": each for name, each in milliseconds.items()},
    }


def costs_of_joins(used: Used) -> dict[str, float]:
    """Processor time per joined connection in ms, of callbacks in us, and what the programs' calls take."""
    joins = max(used["joins"], 1)
    return {
        "sniffer_ms": round(used["sniffer_ns"] / joins / 1e6, 2),
        "daemon_ms": round(used["daemon_ns"] / joins / 1e6, 2),
        "both_ms": round((used["sniffer_ns"] + used["daemon_ns"]) / joins / 1e6, 2),
        "callbacks": round(used["callbacks"] / joins, 1),
        "callback_ns": _per_call(used, "callbacks"),
        "callbacks_us": round(used["callbacks_ns"] / joins / 1e3, 1),
        "iterator_ns_per_socket": _per_call(used, "iterators"),
        "iterators_percent_of_core": round(100 * used["iterators_ns"] / used["elapsed_ns"], 2),
    }


def measure_transfer(seconds: float, settings: Mapping[str, object]) -> dict[str, Any]:
    """The costs of a transfer that only the processor limits."""
    received = 0.0

    def work(_: Services) -> None:
        nonlocal received
        received = drain(lab, PORT, seconds) * seconds

    with build(unshaped(ClientSpec(families=(4,)))) as lab:
        start_pour(lab.proxy, PORT)
        used = _measure(lab, settings, work)
    return {**settings, "gigabytes": round(received / 1e9, 2), **costs_of_transfer(used, received)}


def costs_of_transfer(used: Used, received: float) -> dict[str, float]:
    """What the programs take per packet and per GB of the `received` bytes, and the services of a core."""
    return {
        "callback_ns": _per_call(used, "callbacks"),
        "callbacks_per_packet": round(used["callbacks"] / used["packets"], 3),
        "ns_per_packet": round(used["callbacks_ns"] / used["packets"], 1),
        "ms_per_gigabyte": round(used["callbacks_ns"] / 1e6 / (received / 1e9), 1),
        "packet_program_ns": _per_call(used, "packet_programs"),
        "packet_programs_ns_per_packet": round(used["packet_programs_ns"] / used["packets"], 1),
        "packet_programs_ms_per_gigabyte": round(used["packet_programs_ns"] / 1e6 / (received / 1e9), 1),
        **_services_percent_of_core(used),
    }


def measure_uploads(uploads: int, seconds: float) -> dict[str, Any]:
    """The costs of `uploads` capped uploads at once, for `seconds`."""
    wifi, ethernet = WIFI_FIRST
    configured = (
        wifi,
        replace(ethernet, per=Per.SUBFLOW).with_rates({RateKind.CAP: None, RateKind.UPLINK_CAP: _UPLINK_CAP}),
    )
    with build(Topology(clients=(ClientSpec(families=(4,)),))) as lab:
        server = lab.proxy.start("iperf3", "mptcpize", "run", "iperf3", "--server", "--port", str(PORT))
        server.wait_until(lambda: lab.proxy.listens(PORT, mptcp=True), f"listening on port {PORT}")

        def start(services: Services) -> None:
            command = ("mptcpize", "run", "iperf3", "--client", str(lab.proxy_address(4)), "--port", str(PORT))
            lab.client.start("uploads", *command, "--parallel", str(uploads), "--time", "3600")
            wait_until(lambda: _capped_uplinks(services) >= uploads, f"{uploads} uplinks capped", 60)

        settings = {"prevent_discards": False}
        used = _measure(lab, settings, lambda _: time.sleep(seconds), configured=configured, before_work=start)
    return {"uploads": uploads, **costs_of_uploads(used)}


def _capped_uplinks(services: Services) -> int:
    number: int = services.status()["daemon"]["capped_uplinks"]
    return number


def costs_of_uploads(used: Used) -> dict[str, float]:
    """Cost of programs at the interface per packet of both directions, with reminders; of the services, of a core."""
    return {
        "program_calls_per_packet": round(used["packet_programs"] / used["packets"], 3),
        "ns_per_call": _per_call(used, "packet_programs"),
        "ns_per_packet": round(used["packet_programs_ns"] / used["packets"], 1),
        **_services_percent_of_core(used),
    }


def _services_percent_of_core(used: Used) -> dict[str, float]:
    return {f"{name}_percent_of_core": round(100 * used[f"{name}_ns"] / used["elapsed_ns"], 2) for name in _SERVICES}


def _per_call(used: Used, kind: str) -> int:
    return round(used[f"{kind}_ns"] / used[kind]) if used[kind] else 0


def _print(row: Mapping[str, object]) -> None:
    print("  ", ", ".join(f"{name} {value}" for name, value in row.items()), flush=True)


def _print_columns(downloads: Sequence[Mapping[str, Any]]) -> None:
    """A column per rate."""
    for name in ("downloads_per_second", "reached_per_second", *(f"{name}_ms" for name in (*_SERVICES, "proxy"))):
        print(f"    {name:20}", *(f"{row[name]:>8}" for row in downloads), flush=True)


def main() -> None:
    """Print the costs of JOINs and of downloads at each rate, and of a transfer."""
    parser = command_line("kernel-cost", __doc__)
    per_second = "per second; default: 20 200 1000"
    parser.add_argument("--rates", type=float, nargs="*", default=[20, 200, 1000], help=f"JOINs {per_second}")
    parser.add_argument("--downloads", type=float, nargs="*", default=[20, 200, 1000], help=per_second)
    parser.add_argument("--classifier", nargs="+", default=["auto"], help="daemon.classifier; default: auto")
    parser.add_argument("--uploads", type=int, nargs="*", default=[1, 100], help="at once; default: 1 100")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each; default: %(default)g")
    options = parser.parse_args()
    rows: dict[str, list[dict[str, Any]]] = {"joins": [], "downloads": [], "transfers": [], "uploads": []}
    for uploads in options.uploads:
        rows["uploads"].append(measure_uploads(uploads, options.seconds))
        _print(rows["uploads"][-1])
    for classifier in options.classifier:
        settings = {"classifier": classifier}
        for rate in options.rates:
            rows["joins"].append(measure_joins(rate, options.seconds, settings))
            _print(rows["joins"][-1])
        for rate in options.downloads:
            rows["downloads"].append(measure_downloads(rate, options.seconds, settings))
            _print(rows["downloads"][-1])
        if options.downloads:
            _print_columns(rows["downloads"][-len(options.downloads) :])
        rows["transfers"].append(measure_transfer(options.seconds, settings))
        _print(rows["transfers"][-1])
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
