"""Invariants I2, I3 and I7: the daemon is killed at each of its calls into the kernel, and each of them is refused."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from bench import MEGABYTE, Bench, eventually

from mptcp_lab.download import Download
from mptcp_lab.faults import FOREVER, KILL, KILL_AFTER, Fault, Faults, changes_anything
from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.origin import start_origin
from mptcp_lab.process import Process
from mptcp_lab.services import Services
from mptcp_lab.squid import start_squid
from mptcp_lab.throttled import Client, may_be_throttled, throttled
from mptcp_lab.topology import WIFI, ClientSpec, Topology, build
from mptcp_throttle.rpc import Json, RpcClient, RpcError
from mptcp_throttle.units import Rate

CAP = 1_000_000
PLAIN = ("qdisc replace dev eth0 root handle 5: pfifo limit 1000",)
TREE = (
    "qdisc replace dev eth0 root handle 7: tbf rate 500mbit burst 200k latency 50ms",
    "qdisc replace dev eth0 parent 7:1 handle 8: bfifo limit 900000",
)
STEPS = (
    "record the root qdisc",
    "tc qdisc replace dev eth0 htb",
    "tc class add",
    "ipset create",
    "ipset add",
    "iptables-legacy -t mangle -A",
    "tc class change",
    "ipset del",
    "iptables-legacy -t mangle -X",
    "ipset destroy",
    "tc qdisc replace dev eth0 tbf",
    "tc qdisc replace dev eth0 bfifo",
)
ERRORS = ("EBUSY", "EAGAIN", "ENOBUFS", "ENODEV", "EPERM")


@dataclass(frozen=True)
class Faulty(Bench):
    """A bench whose daemon has faults."""

    faults: Faults

    @property
    def daemon(self) -> Process:
        assert self.services.daemon is not None
        return self.services.daemon

    def start_daemon(self) -> None:
        self.faults.plan()
        self.services.start_daemon(self.faults)
        self.services.wait_ready()

    def transfer(self) -> Download:
        """One that lasts a second, whatever is done to it: the client reads slowly."""
        return Download(self.lab, self.lab.client, self.origin.add(MEGABYTE), rate_limit=Rate(8 * MEGABYTE))

    def lose_wifi(self) -> None:
        self.lab.client.run("ss", "-K", "-t", "src", str(self.lab.client.address(WIFI, 4)))

    def held(self) -> dict[Client, int]:
        return throttled(self.lab.proxy)

    def state(self) -> dict[str, str]:
        return kernel_state(self.lab.proxy)

    def errors(self) -> list[str]:
        return list(self.services.status()["daemon"]["errors"])

    def call(self, method: str, *params: object) -> Json:
        return RpcClient(self.services.directory / "run" / "daemon.sock").call(method, *params)

    def unlimit(self) -> None:
        self.call("set_rate", "ethernet", "cap", None, None)

    def is_as_planned(self) -> bool:
        """Without errors, all that the daemon planned is in force; and that is what the connections call for."""
        if self.errors() or not self.call("plan")["in_force"]:
            return False
        return self.held() == dict.fromkeys(may_be_throttled(self.lab.proxy, WIFI), CAP)


@pytest.fixture(scope="module")
def work() -> Iterator[Faulty]:
    with build(Topology(clients=(ClientSpec(families=(4,)),))) as lab:
        start_squid(lab.proxy)
        origin = start_origin(lab.origin)
        services = Services(lab.proxy, linger="100ms", daemon={"reconcile_interval": "500ms"})
        services.start_sniffer()
        yield Faulty(lab, origin, services, Faults(lab.directory / "faults"))
        services.__exit__(None, None, None)
        assert "Traceback" not in services.log()


def cap_and_lift(work: Faulty) -> Download:
    """A transfer is capped, and loses its Wi-Fi, which lifts the cap; then it goes on. The daemon may die meanwhile."""
    transfer = work.transfer()
    eventually(lambda: bool(work.held()) or work.daemon.exit_status is not None, "capped, or the daemon dead")
    if work.daemon.exit_status is None:
        work.lose_wifi()
    return transfer


def boundaries(work: Faulty, original: dict[str, str]) -> list[Fault]:
    """A kill before every call that changed anything in one cycle, and one after the last."""
    work.start_daemon()
    transfer = cap_and_lift(work)
    eventually(lambda: work.state() == original, "the original back")
    calls = [call for call in work.faults.calls() if changes_anything(call)]
    assert transfer.wait().intact
    work.daemon.stop()
    kills, seen = [], Counter[str]()
    for call in calls:
        seen[call] += 1
        kills.append(Fault(KILL, call, seen[call]))
    return [*kills, Fault(KILL_AFTER, calls[-1], seen[calls[-1]])]


def restart(work: Faulty, original: dict[str, str], transfer: Download) -> None:
    work.start_daemon()
    eventually(work.is_as_planned, "the kernel equals the plan", within=2)
    assert transfer.wait().intact
    eventually(lambda: work.state() == original, "after the transfer the original is back", within=2)


def clean_up(work: Faulty, original: dict[str, str], transfer: Download) -> None:
    work.services.clean_up()
    assert work.state() == original
    assert work.services.records == []
    work.start_daemon()
    assert transfer.wait().intact
    eventually(lambda: work.state() == original, "after the transfer the original is back", within=2)


@pytest.mark.parametrize("recover", [restart, clean_up])
def test_killed_at_any_call_nothing_stays_between(
    work: Faulty, recover: Callable[[Faulty, dict[str, str], Download], None]
) -> None:
    work.lab.proxy.tc(TREE)
    original = work.state()
    kills = boundaries(work, original)
    assert [step for step in STEPS if not any(kill.call.startswith(step) for kill in kills)] == []
    work.start_daemon()
    for kill in kills:
        print(kill)
        work.faults.plan(kill)
        transfer = cap_and_lift(work)
        assert work.daemon.wait(5) == -signal.SIGKILL
        recover(work, original, transfer)
    work.daemon.stop()
    assert work.state() == original
    assert work.services.records == []


def test_killed_while_a_class_is_deleted_under_a_transfer_nobody_is_held_by_it_after_the_restart(work: Faulty) -> None:
    work.lab.proxy.tc(PLAIN)
    original = work.state()
    work.start_daemon()
    for kind in (KILL, KILL_AFTER):
        # Without Wi-Fi the limit holds: HTB stays, and the class of the cap goes when it has lingered.
        work.call("set_rate", "ethernet", "limit", "5mbit", None)
        work.faults.plan(Fault(kind, "tc class del"))
        transfer = cap_and_lift(work)
        assert work.daemon.wait(5) == -signal.SIGKILL
        work.start_daemon()
        work.call("reset_rate", "ethernet")
        eventually(work.is_as_planned, "the kernel equals the plan", within=2)
        assert transfer.wait().intact
        eventually(lambda: work.state() == original, "after the transfer the original is back", within=2)
    work.daemon.stop()
    assert work.services.records == []


@dataclass(frozen=True)
class Toggled:
    """A transfer that goes on for as long as wanted, capped and freed again by setting the rate."""

    work: Faulty
    original: dict[str, str]

    def cap(self) -> str:
        """What the operator is told."""
        return self._told(lambda: self.work.call("reset_rate", "ethernet"))

    def free(self) -> str:
        return self._told(lambda: self.work.call("set_rate", "ethernet", "cap", None, None))

    def _told(self, ask: Callable[[], Json]) -> str:
        try:
            ask()
        except RpcError as refusal:
            return str(refusal)
        return ""

    def is_capped(self) -> bool:
        return bool(self.work.held()) and self.work.is_as_planned()

    def is_free(self) -> bool:
        return not self.work.errors() and self.work.state() == self.original


@pytest.fixture(scope="module")
def toggled(work: Faulty) -> Iterator[Toggled]:
    work.lab.proxy.tc(TREE)
    original = work.state()
    work.start_daemon()
    transfer = Download(work.lab, work.lab.client, work.origin.add(50 * MEGABYTE), rate_limit=Rate(MEGABYTE))
    work.wait_capped()
    toggled = Toggled(work, original)
    toggled.free()
    eventually(toggled.is_free, "free")
    yield toggled
    work.abort(transfer)
    assert work.daemon.exit_status is None
    assert work.daemon.stop() == 0
    assert work.state() == original
    assert work.services.records == []


def calls_of(toggled: Toggled, change: Callable[[], str], done: Callable[[], bool]) -> list[tuple[str, str]]:
    """All calls that a change takes, in their order, each with errors; a call that only looks gets one of them."""
    toggled.work.faults.plan()
    change()
    eventually(done, "done")
    # What concerns the pace of sockets keeps nobody from being capped, or freed.
    concerned = (call for call in toggled.work.faults.calls() if not call.startswith(("ss -t", "bpf ")))
    names = dict.fromkeys(concerned)
    return [
        (call, error)
        for number, call in enumerate(names)
        for error in (ERRORS if changes_anything(call) else [ERRORS[number % len(ERRORS)]])
    ]


def test_a_call_that_fails_while_capping_leaves_the_subflow_free_until_it_works(toggled: Toggled) -> None:
    work = toggled.work
    calls = calls_of(toggled, toggled.cap, toggled.is_capped)
    assert len({call for call, _ in calls if changes_anything(call)}) >= 6
    for call, error in calls:
        toggled.free()
        eventually(toggled.is_free, f"free before {call}: {error}", within=3)
        work.faults.plan(Fault(error, call, times=FOREVER))
        assert f"{call}: {error}" in toggled.cap()
        assert any(line.startswith(f"{call}: {error}") for line in work.errors())
        if error == ERRORS[0]:
            tried = work.faults.calls().count(call)
            eventually(lambda: work.faults.calls().count(call) > tried, "tried again")  # noqa: B023
        # Where it is the look afterwards that fails, each attempt holds it for that long.
        assert work.held() == {} or not changes_anything(call)
        eventually(lambda: work.held() == {}, f"free again after {call}: {error}", within=1)
        work.faults.plan()
        eventually(toggled.is_capped, f"capped after {call}: {error}", within=3)
    toggled.free()


def test_a_call_that_fails_while_lifting_holds_nobody(toggled: Toggled) -> None:
    # What keeps nothing from being put back is in the log only.
    work, log = toggled.work, toggled.work.services.log
    toggled.cap()
    eventually(toggled.is_capped, "capped")
    calls = calls_of(toggled, toggled.free, toggled.is_free)
    assert len({call for call, _ in calls if changes_anything(call)}) >= 7
    for call, error in calls:
        toggled.cap()
        eventually(toggled.is_capped, f"capped before {call}: {error}", within=3)
        work.faults.plan(Fault(error, call, times=FOREVER))
        told = toggled.free()
        eventually(lambda: f"{call}: {error}" in "".join([told, *work.errors(), log()]), f"{call}: {error} told")  # noqa: B023
        assert work.held() == {}
        work.faults.plan()
        eventually(toggled.is_free, f"free after {call}: {error}", within=3)


@pytest.mark.parametrize(
    "calls",
    [
        ("ipset del", "tc class"),
        ("ipset", "tc class"),
        ("ipset del", "iptables-legacy -t mangle -F", "tc class"),
        ("iptables-legacy -t mangle -S", "tc class", "tc filter show"),
        ("iptables-legacy -t mangle -S", "ipset del", "iptables-legacy -t mangle -F", "record"),
        ("ipset del", "iptables-legacy -t mangle -F", "tc qdisc replace"),
        ("ipset del", "iptables-legacy -t mangle -F", "tc class", "record"),
    ],
)
def test_several_calls_that_fail_while_lifting_hold_nobody(toggled: Toggled, calls: tuple[str, ...]) -> None:
    work = toggled.work
    toggled.cap()
    eventually(toggled.is_capped, "capped", within=3)
    work.faults.plan(*(Fault("EBUSY", call, times=FOREVER) for call in calls))
    assert "EBUSY" in toggled.free()
    assert work.held() == {}
    work.faults.plan()
    eventually(toggled.is_free, "free", within=3)


def test_whoever_deletes_our_qdisc_the_original_comes_back_in_the_end(toggled: Toggled) -> None:
    delete = ("tc", "qdisc", "del", "dev", "eth0", "root", "handle", "4d50:")
    toggled.cap()
    eventually(toggled.is_capped, "capped", within=3)
    toggled.work.lab.proxy.run(*delete)
    eventually(toggled.is_capped, "capped again", within=3)
    toggled.free()
    eventually(toggled.is_free, "free", within=3)

    toggled.cap()
    eventually(toggled.is_capped, "capped", within=3)
    toggled.work.daemon.kill()
    toggled.work.lab.proxy.run(*delete)
    toggled.work.start_daemon()
    eventually(toggled.is_capped, "capped by the next daemon", within=2)
    toggled.free()
    eventually(toggled.is_free, "free", within=3)

    toggled.cap()
    eventually(toggled.is_capped, "capped", within=3)
    toggled.work.daemon.kill()
    toggled.work.lab.proxy.run(*delete)
    toggled.work.services.clean_up()
    assert toggled.work.state() == toggled.original
    toggled.work.start_daemon()
