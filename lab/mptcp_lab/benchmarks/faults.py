"""Random faults during transfers: services are killed, calls are refused, other programs delete our kernel objects.

A run follows from its seed alone. After the faults the services are recovered as systemd or an operator would do it.
Within 2 s the kernel state must be the planned or the original one. By then no subflow may be a backup without a
reason, at the client or at the proxy. The transfer must complete, and at the end the original state must be restored.
"""

from __future__ import annotations

import random
import re
import shutil
import sys
import time
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_lab.class_assignments import SHOW_ASSIGNMENTS, parse_assignments
from mptcp_lab.download import Download
from mptcp_lab.fault_plan import FOREVER, KILL, KILL_AFTER, Fault, Faults
from mptcp_lab.interrupts import Interrupted, raise_on_signals
from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.lab_errors import LabError
from mptcp_lab.origin import start_origin
from mptcp_lab.services import WIFI_FIRST, Services
from mptcp_lab.squid import PORT, start_squid
from mptcp_lab.throttled import Client, held, may_be_throttled, paced, throttled
from mptcp_lab.topology import ETHERNET, WIFI, Topology, build
from mptcp_lab.upload import Upload
from mptcp_throttle.errors import EX_INTERRUPTED
from mptcp_throttle.model import ClassifierKind, RateKind
from mptcp_throttle.rpc import RpcError
from mptcp_throttle.units import Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mptcp_lab.origin import Document, Origin
    from mptcp_lab.process import Process
    from mptcp_lab.topology import Family, Lab

# On slow links a small document takes some seconds; a cap near their rates lets the download end soon.
_BYTES: Final = 1_200_000
_ETHERNET: Final = replace(ETHERNET, rate=Rate(4_000_000))
_WIFI: Final = replace(WIFI, rate=Rate(6_000_000))
_CAP: Final = Rate(2_000_000)
_TRANSFER_SECONDS: Final = 10.0
_BETWEEN_SECONDS: Final = 2.0  # how long the kernel state may be neither the planned nor the original one
_POLL_SECONDS: Final = 0.02
_LOG_LINES: Final = 30

_ORIGINALS: Final[dict[str, tuple[str, ...]]] = {
    "the kernel's default": (),
    "pfifo": ("qdisc add dev eth0 root handle 5: pfifo limit 1000",),
    "pfifo_fast": ("qdisc add dev eth0 root handle 6: pfifo_fast",),
    "tbf": (
        "qdisc add dev eth0 root handle 7: tbf rate 500mbit burst 200k latency 50ms",
        "qdisc add dev eth0 parent 7:1 handle 8: bfifo limit 900000",
    ),
    "mq": (
        "qdisc add dev eth0 root handle 3: mq",
        "qdisc add dev eth0 parent 3:1 handle 31: pfifo limit 500",
    ),
}

_ERRORS: Final = ("EBUSY", "EAGAIN", "ENOBUFS", "ENODEV", "EPERM")
_CALLS: Final = (
    "",
    "record",
    "ip link show",
    "tc qdisc show",
    "tc qdisc replace",
    "tc qdisc add",
    "tc qdisc del",
    "tc class show",
    "tc class",
    "tc filter add",
    "tc filter add clsact",
    "iptables-legacy",
    "iptables-legacy: ",
    "iptables-legacy -t mangle -A",
    "iptables-legacy -t mangle -F",
    "iptables-legacy -t mangle -X",
    "nft",
    "nft list",
    "nft add table",
    "nft add element",
    "nft delete table",
    "ip6tables-legacy",
    "ip6tables-legacy: ",
    "bpf",
    "bpf object load",
    "bpf link create",
    "bpf prog attach",
    "bpf prog detach",
    "bpf prog query",
    "bpf map update",
    "bpf iterator",
    "bpf test run",
)
"""Prefixes of the names of calls; the empty one matches all."""

_DELETIONS: Final = {
    "qdisc deleted": "tc qdisc del dev eth0 root handle 4d50:",
    "filter deleted": "tc filter del dev eth0 parent 4d50:",
    "class deleted": "tc class del dev eth0 classid 4d50:2",
    "mangle flushed": "iptables-legacy -t mangle -F; ip6tables-legacy -t mangle -F",
    "chain flushed": "iptables-legacy -t mangle -F MPTCP-THROTTLE; ip6tables-legacy -t mangle -F MPTCP-THROTTLE",
    "nftables flushed": "nft flush ruleset",
    "clsact deleted": "tc qdisc del dev eth0 clsact",
    "jump deleted": "iptables-legacy -t mangle -F POSTROUTING; ip6tables-legacy -t mangle -F POSTROUTING",
}
_CLSACT: Final = "qdisc clsact ffff: parent ffff:fff1 \n"
_CLSACT_RECORD: Final = "clsact-"
_DAEMON_KILLED: Final = "daemon killed"
_SNIFFER_KILLED: Final = "sniffer killed"
_BOTH_KILLED: Final = "both killed"
_STOPPED: Final = "daemon stopped"
_KILLS: Final = (_DAEMON_KILLED, _SNIFFER_KILLED, _BOTH_KILLED, _STOPPED)
_WIFI_LOST: Final = "wifi lost"


@dataclass(frozen=True, slots=True)
class Event:
    """What happens `at` seconds after the start of the transfer."""

    at: float
    what: str

    def __str__(self) -> str:
        return f"{self.what} at {self.at:.2f} s"


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happens in one run; `recovery` seconds after the last event the services are recovered.

    A daemon that has ended is followed by `--cleanup` (as the clean-up unit does it), by a restart, or by both.
    """

    classifier: ClassifierKind
    family: Family
    original: str
    faults: tuple[Fault, ...]
    events: tuple[Event, ...]
    recovery: float
    clean_up: bool
    start_daemon: bool
    start_sniffer: bool
    is_upload: bool

    def __str__(self) -> str:
        what = "; ".join(map(str, ("upload" if self.is_upload else "download", *self.faults, *self.events)))
        steps = {"clean-up": self.clean_up, "daemon": self.start_daemon, "sniffer": self.start_sniffer}
        then = ", ".join(name for name, wanted in steps.items() if wanted)
        return f"{self.classifier}, IPv{self.family}, {self.original}: {what}; {self.recovery:.2f} s later: {then}"


def scenario(seed: int) -> Scenario:
    """The run of that seed."""
    chance = random.Random(seed)  # noqa: S311
    events = [Event(chance.uniform(0.0, 0.9), chance.choice(_KILLS)) for _ in range(chance.choice((0, 1, 1)))]
    events += [
        Event(chance.uniform(0.2, 0.9), chance.choice(tuple(_DELETIONS))) for _ in range(chance.choice((0, 0, 1)))
    ]
    events += [Event(chance.uniform(0.2, 0.9), _WIFI_LOST)] * chance.choice((0, 1))
    clean_up = chance.random() < 0.5
    return Scenario(
        classifier=chance.choice((ClassifierKind.SOCKET, ClassifierKind.NFT, ClassifierKind.RULES)),
        family=chance.choice((4, 6)),
        original=chance.choice(tuple(_ORIGINALS)),
        faults=tuple(_fault(chance) for _ in range(chance.choice((1, 1, 2)))),
        events=tuple(sorted(events, key=lambda event: event.at)),
        recovery=chance.uniform(0.1, 0.8),
        clean_up=clean_up,
        start_daemon=not clean_up or chance.random() < 0.7,
        start_sniffer=chance.random() < 0.8,
        is_upload=chance.random() < 0.5,
    )


def _fault(chance: random.Random) -> Fault:
    call = chance.choice(_CALLS)
    first = chance.randint(1, 3 if call else 60)
    if chance.random() < 0.4:
        return Fault(chance.choice((KILL, KILL_AFTER)), call, first)
    return Fault(chance.choice(_ERRORS), call, first, chance.choice((1, 2, 3, 5, FOREVER)))


@dataclass(frozen=True, slots=True)
class Result:
    """What one run has found.

    `leftovers`: kernel objects of ours that remain. `stranded`: clients that stay throttled, and everything else that
    failed. `recovered` is the time that recovery took, in seconds.
    """

    seed: int
    leftovers: tuple[str, ...]
    stranded: tuple[str, ...]
    recovered: float
    seconds: float
    log: str


class _Run:
    """One run, in a lab that several runs share."""

    def __init__(self, lab: Lab, services: Services, origin: Origin, document: Document, plan: Scenario) -> None:
        self._lab = lab
        self._origin = origin
        self._proxy = lab.proxy
        self._services = services
        self._document = document
        self._plan = plan
        self._faults = Faults(services.directory / "faults")
        self._leftovers: list[str] = []
        self._stranded: list[str] = []
        self._recovered = 0.0
        self._may_end = any(fault.kind in (KILL, KILL_AFTER) for fault in plan.faults)
        _wipe(lab, services, _ORIGINALS[plan.original])
        services.configure_daemon(classifier=str(plan.classifier))
        self._original = kernel_state(self._proxy)

    def carry_out(self, seed: int) -> Result:
        """Carry out the run, and end what it started."""
        began, logged = time.monotonic(), len(self._services.log())
        try:
            self._faults.plan()
            self._start(daemon=True, sniffer=True)
            self._faults.plan(*self._plan.faults)
            transfer = self._start_transfer()
            self._suffer(time.monotonic())
            self._recover()
            self._settle("after recovery")
            result = transfer.wait(_TRANSFER_SECONDS)
            if not result.intact:
                self._stranded.append(f"transfer not intact: {result}")
            self._settle("after the transfer")
        except LabError as error:
            self._stranded.append(str(error))
        finally:
            self._services.stop()
        self._expect_original("in the end")
        log = self._services.log()[logged:]
        if "Traceback" in log:
            self._stranded.append("a traceback in the daemon's log")
        seconds = time.monotonic() - began
        return Result(seed, tuple(self._leftovers), tuple(self._stranded), self._recovered, seconds, log)

    def _start_transfer(self) -> Download | Upload:
        lab, family = self._lab, self._plan.family
        if self._plan.is_upload:
            return Upload(lab, lab.client, self._origin, _BYTES, family=family)
        return Download(lab, lab.client, self._document, family=family)

    def _start(self, *, daemon: bool, sniffer: bool) -> None:
        if sniffer:
            self._services.start_sniffer()
        if daemon:
            self._services.start_daemon(self._faults)
        if self._sniffer_runs and self._daemon_runs:
            self._services.wait_ready()
        elif self._daemon_runs:
            self._process.wait_until(lambda: self._services.answers(self._services.sockets.daemon), "answering")

    def _suffer(self, began: float) -> None:
        for event in self._plan.events:
            time.sleep(max(began + event.at - time.monotonic(), 0.0))
            self._happen(event.what)
        time.sleep(self._plan.recovery)

    def _happen(self, what: str) -> None:
        if what == _WIFI_LOST:
            address = self._lab.client.address(_WIFI, self._plan.family)
            self._lab.client.run("ss", "-K", "-t", "src", f"[{address}]" if self._plan.family == 6 else str(address))
        elif what in _DELETIONS:
            self._proxy.run("sh", "-c", _DELETIONS[what], check=False)
        elif what == _STOPPED:
            self._stop_daemon()
        else:
            self._kill(what)

    def _stop_daemon(self) -> None:
        if self._daemon_runs:
            self._may_end = True
            if self._process.stop() == 0:
                self._expect_original("after the daemon has ended with status 0")

    def _kill(self, what: str) -> None:
        if what in (_DAEMON_KILLED, _BOTH_KILLED):
            self._may_end = True
            self._process.kill()
        if what in (_SNIFFER_KILLED, _BOTH_KILLED) and self._services.sniffer is not None:
            self._services.sniffer.kill()

    def _recover(self) -> None:
        self._faults.plan()
        if not self._daemon_runs:
            if not self._may_end:
                self._stranded.append(f"the daemon has ended unexpectedly: status {self._process.exit_status}")
            if self._plan.clean_up:
                self._services.clean_up()
                self._expect_original("after the clean-up")
        self._start(
            daemon=self._plan.start_daemon and not self._daemon_runs,
            sniffer=self._plan.start_sniffer and not self._sniffer_runs,
        )

    def _settle(self, when: str) -> None:
        """Wait until the kernel state is the wanted one."""
        began = time.monotonic()
        while (problem := self._problem()) is not None and time.monotonic() - began < _BETWEEN_SECONDS:
            time.sleep(_POLL_SECONDS)
        self._recovered = max(self._recovered, time.monotonic() - began)
        if problem is not None:
            (self._stranded if self._is_client_stranded() else self._leftovers).append(f"{when}: {problem}")

    def _problem(self) -> str | None:
        """How the kernel state differs from the wanted one; None if it does not."""
        if not self._daemon_runs:
            return self._difference()
        try:
            status, plan = self._services.status(), self._services.ask("plan")
        except RpcError as error:
            return str(error)
        if status["daemon"]["errors"]:
            return "; ".join(status["daemon"]["errors"])
        if not plan["applied"]:
            return "the plan is not applied"
        known = status["sniffer"]["connected"]
        wanted = dict.fromkeys(may_be_throttled(self._proxy, _WIFI), _CAP.bits_per_second) if known else {}
        present = throttled(self._proxy)
        if present != wanted:
            return f"throttled: {present}, to be throttled: {wanted}"
        if unwanted := paced(self._proxy) - wanted.keys():
            return f"paced: {unwanted}, to be throttled: {wanted}"
        uplinks = {Client(s.client, s.client_port) for s in self._services.subflows() if s.uplink_kind is not None}
        if uplinks != wanted.keys():
            return f"throttled uplinks: {uplinks}, to be throttled: {wanted}"
        if unwanted := (self._backups() | self._held()) - wanted.keys():
            return f"backups: {unwanted}, to be throttled: {wanted}"
        return None if plan["operations"] or wanted else self._difference()

    def _backups(self) -> set[Client]:
        """The subflows of which the client was told that they are backups (ss(8): B, MPTCP_SUBFLOW_FLAG_BKUP_REM)."""
        lines = self._lab.client.run("ss", "-tinH", "dport", "=", f":{PORT}").stdout.splitlines()
        told = [ends.split()[3].rsplit(":", 1) for ends, info in pairwise(lines) if re.search(r" flags:\w*B", info)]
        return {Client(address.split("%")[0].strip("[]"), int(port)) for address, port in told}

    def _held(self) -> set[Client]:
        return held(self._proxy, [self._lab.client])

    def _difference(self) -> str | None:
        now, names = kernel_state(self._proxy), self._services.records
        if self._daemon_runs:  # its filters for steering are there whenever a network has a cap
            now = {command: text.replace(_CLSACT, "") for command, text in now.items()}
            names = [name for name in names if not name.startswith(_CLSACT_RECORD)]
        changed = [f"{now[command]!r} was {text!r}" for command, text in self._original.items() if now[command] != text]
        records = [f"record {name}" for name in names]
        paces = [f"paced: {client}" for client in sorted(paced(self._proxy))]
        assigned = [
            f"assigned: {each}" for each in parse_assignments(self._proxy.run("sh", "-c", SHOW_ASSIGNMENTS).stdout)
        ]
        backups = [f"backup: {client}" for client in sorted(self._backups() | self._held())]
        return "; ".join([*changed, *records, *paces, *assigned, *backups]) or None

    def _is_client_stranded(self) -> bool:
        present = throttled(self._proxy).keys() | paced(self._proxy)
        present |= self._backups() | self._held()
        return bool(present) and (not self._daemon_runs or not present <= may_be_throttled(self._proxy, _WIFI))

    def _expect_original(self, when: str) -> None:
        difference = self._difference()
        if difference is not None:
            self._leftovers.append(f"{when}: {difference}")

    @property
    def _process(self) -> Process:
        if self._services.daemon is None:
            raise LabError("mptcp-throttled: not started")
        return self._services.daemon

    @property
    def _daemon_runs(self) -> bool:
        return self._services.exit_statuses[1] is None

    @property
    def _sniffer_runs(self) -> bool:
        return self._services.exit_statuses[0] is None


def _wipe(lab: Lab, services: Services, original: Sequence[str]) -> None:
    """Remove what a failed run has left, and give the interface its original qdisc."""
    for qdisc in ("root", "clsact"):
        lab.proxy.run("tc", "qdisc", "del", "dev", "eth0", qdisc, check=False)
    for tool in ("iptables-legacy", "ip6tables-legacy"):
        lab.proxy.run(tool, "-t", "mangle", "-F")
        lab.proxy.run(tool, "-t", "mangle", "-X")
    lab.proxy.run("nft", "flush", "ruleset")
    shutil.rmtree(services.directory / "state", ignore_errors=True)
    if original:
        lab.proxy.tc(original)


def measure(seeds: Sequence[int], report: Callable[[Result, Scenario], None]) -> list[Result]:
    """Carry out the runs of these seeds in one lab; `report` is called after each."""
    results = []
    with build(Topology(ethernet=_ETHERNET, wifi=_WIFI)) as lab:
        start_squid(lab.proxy)
        origin = start_origin(lab.origin)
        document = origin.add(_BYTES)
        wifi, ethernet = WIFI_FIRST
        networks = wifi, ethernet.with_rates({RateKind.CAP: _CAP, RateKind.UPLINK_CAP: _CAP})
        services = Services(lab.proxy, networks, linger="200ms", daemon={"reconcile_interval": "1s"})
        for seed in seeds:
            plan = scenario(seed)
            results.append(_Run(lab, services, origin, document, plan).carry_out(seed))
            report(results[-1], plan)
    return results


def _report(result: Result, plan: Scenario) -> None:
    problems = [
        *(f"leftover: {line}" for line in result.leftovers),
        *(f"stranded: {line}" for line in result.stranded),
    ]
    print(f"seed {result.seed} {'FAILED' if problems else 'ok'} {result.seconds:.1f} s: {plan}", flush=True)
    if problems:
        print(*problems, *result.log.splitlines()[-_LOG_LINES:], sep="\n  ")
        print(f"benchmarks/faults --runs 1 --seed {result.seed}", flush=True)


def main() -> int:
    """Print a line per run and the counts."""
    parser = command_line("faults", __doc__)
    parser.add_argument("--runs", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the first run, then counted up; default: 1")
    options = parser.parse_args()
    raise_on_signals()
    try:
        results = measure(range(options.seed, options.seed + options.runs), _report)
    except Interrupted:
        return EX_INTERRUPTED
    write_json(options.json, [asdict(result) for result in results])
    leftovers = sum(bool(result.leftovers) for result in results)
    stranded = sum(bool(result.stranded) for result in results)
    recovered = sorted(result.recovered for result in results)
    print(f"recovered after {recovered[len(recovered) // 2]:.2f} s (median), {recovered[-1]:.2f} s (at most)")
    print(f"runs {len(results)} leftovers {leftovers} stranded {stranded}")
    return int(leftovers + stranded > 0)


if __name__ == "__main__":
    sys.exit(main())
