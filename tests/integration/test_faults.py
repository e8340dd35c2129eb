"""Invariants I2, I3 and I7: the daemon is killed at each of its calls into the kernel, and each call is refused."""

from __future__ import annotations

import itertools
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from polling import eventually
from proxy_world import MEGABYTE, PACKET_CLASSIFIERS, Hosts, ProxyWorld, configured

from mptcp_lab.download import Download
from mptcp_lab.fault_plan import FOREVER, KILL, KILL_AFTER, Fault, Faults
from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.throttled import Client, may_be_throttled, throttled
from mptcp_lab.topology import WIFI, ClientSpec, Topology
from mptcp_throttle.rpc import Json, RpcError
from mptcp_throttle.units import Rate

CLIENTS = tuple(ClientSpec(name, families=(4,)) for name in ("one", "two", "three"))
TOPOLOGY = Topology(clients=CLIENTS)
CAP = 1_000_000
PLAIN = ("qdisc replace dev eth0 root handle 5: pfifo limit 1000",)
TREE = (
    "qdisc replace dev eth0 root handle 7: tbf rate 500mbit burst 200k latency 50ms",
    "qdisc replace dev eth0 parent 7:1 handle 8: bfifo limit 900000",
)
STEPS = {
    "nft": (
        "record the root qdisc",
        "tc qdisc replace dev eth0 htb",
        "tc class add",
        "nft add table",
        "tc class change",
        "nft add element",
        "nft delete table",
        "tc qdisc replace dev eth0 tbf",
        "tc qdisc replace dev eth0 bfifo",
    ),
    "rules": ("iptables-legacy -t mangle -A", "iptables-legacy -t mangle -X"),
    "socket": ("bpf map update", "bpf map delete"),
    "steering": ("bpf map update", "bpf map delete"),
}
"""What the calls of one cycle must contain; those that are not for assignments are the same for all classifiers.

With `steering` the classifier is `socket`; with the others, capped subflows are not held back.
"""

ERRORS = ("EBUSY", "EAGAIN", "ENOBUFS", "ENODEV", "EPERM")
# How often the programs are asked to decide at once depends on how long that takes.
READS = re.compile(r" show\b| -S\b|^ss |^nft list |^look for |^the kernel has no |^bpf (iterator|test run)")


def changes_anything(call: str) -> bool:
    """Whether a call of that name is more than a look."""
    return READS.search(call) is None


@dataclass(frozen=True)
class FaultyWorld(ProxyWorld):
    """A world whose daemon has faults."""

    faults: Faults = field(kw_only=True)

    def start_daemon(self) -> None:
        if self.services.daemon is not None:
            self.services.daemon.stop()  # that of a test that has failed
        self.faults.plan()
        self.services.start_daemon(self.faults)
        self.services.wait_ready()

    def transfer(self) -> Download:
        """A download of the first client that takes a second, however fast the paths are: the client reads slowly.

        Sockets get their class when their queue has drained, with such a client after 1.5 s: then it takes 3 s. With
        steering no queue drains: what the client's buffers have room for arrives at once, and the rest takes 2 s.
        """
        if self.is_steered():
            return self.download(10 * MEGABYTE, rate_limit=Rate(16 * MEGABYTE))
        seconds = 3 if self.services.status()["daemon"]["classifier"] == "socket" else 1
        return self.download(seconds * MEGABYTE, rate_limit=Rate(8 * MEGABYTE))

    def lose_wifi(self) -> None:
        self.lab.client.run("ss", "-K", "-t", "src", str(self.lab.client.address(WIFI, 4)))

    def held(self) -> dict[Client, int]:
        return throttled(self.proxy)

    def state(self) -> dict[str, str]:
        return kernel_state(self.proxy)

    def is_steered(self) -> bool:
        """Whether capped subflows are held back."""
        features = self.services.status()["daemon"]["features"]
        return features["steering"]["problem"] is None

    def idle_state(self) -> dict[str, str]:
        """The state while the daemon runs and no subflow is throttled, once the filters of steering are there."""
        if self.is_steered():
            eventually(lambda: "clsact" in str(self.state()), "the filters attached")
        return self.state()

    def is_as_planned(self) -> bool:
        """No errors, the plan is applied, and the kernel throttles exactly what the connections justify."""
        if self.errors() or not self.services.ask("plan")["applied"]:
            return False
        return self.held() == dict.fromkeys(may_be_throttled(self.proxy, WIFI), CAP)


@pytest.fixture(scope="module")
def world(hosts: Hosts) -> Iterator[FaultyWorld]:
    """With the sniffer running; each test starts the daemon. Without pacing, a cap is in HTB at once."""
    with configured(hosts, daemon={"linger": "100ms", "reconcile_interval": "500ms", "pacing": False}) as base:
        base.services.start_sniffer()
        yield FaultyWorld(base.lab, base.origin, base.services, faults=Faults(base.lab.directory / "faults"))


def cap_and_free(world: FaultyWorld) -> Download:
    """A transfer is capped, then freed by the loss of its Wi-Fi, and goes on. The daemon may die meanwhile."""
    transfer = world.transfer()
    eventually(lambda: bool(world.held()) or world.daemon.exit_status is not None, "capped, or the daemon dead")
    if world.daemon.exit_status is None:
        world.lose_wifi()
    return transfer


def boundaries(world: FaultyWorld) -> list[Fault]:
    """A kill before every call that changed anything in one cycle, and one after the last."""
    world.start_daemon()
    idle = world.idle_state()
    world.faults.plan()
    transfer = cap_and_free(world)
    eventually(lambda: world.state() == idle, "everything restored")
    calls = [call for call in world.faults.calls() if changes_anything(call)]
    assert transfer.wait().intact
    world.daemon.stop()
    kills, seen = [], Counter[str]()
    for call in calls:
        seen[call] += 1
        kills.append(Fault(KILL, call, seen[call]))
    return [*kills, Fault(KILL_AFTER, calls[-1], seen[calls[-1]])]


def wait_as_planned_and_restored(world: FaultyWorld, before: dict[str, str], transfer: Download) -> None:
    """The plan is applied within 2 s of the daemon's start, and within 2 s of the transfer's end nothing is left."""
    eventually(world.is_as_planned, "the kernel equals the plan", within=2)
    assert transfer.wait().intact
    eventually(lambda: world.state() == before, "everything restored after the transfer", within=2)


@dataclass(frozen=True)
class States:
    """Without a daemon, and with one while no subflow is throttled."""

    original: dict[str, str]
    idle: dict[str, str]


def restart(world: FaultyWorld, states: States, transfer: Download) -> None:
    world.start_daemon()
    wait_as_planned_and_restored(world, states.idle, transfer)


def clean_up(world: FaultyWorld, states: States, transfer: Download) -> None:
    world.services.clean_up()
    assert (world.state(), world.restrained()) == (states.original, set())
    assert world.services.records == []
    restart(world, states, transfer)


def is_dead_or_idle(world: FaultyWorld, states: States, transfer: Download) -> bool:
    """Whether the daemon was killed, or the transfer has ended without that."""
    return world.daemon.exit_status is not None or (not transfer.running and world.state() == states.idle)


@pytest.mark.parametrize("variant", STEPS)
def test_kernel_recovers_from_a_daemon_killed_at_any_call(world: FaultyWorld, variant: str) -> None:
    steering = variant == "steering"
    classifier = "socket" if steering else variant
    world.services.configure_daemon(classifier=classifier, pacing=classifier == "socket", steering=steering)
    world.proxy.tc(TREE)
    original = world.state()
    kills = boundaries(world)
    assert [step for step in STEPS[variant] if not any(kill.call.startswith(step) for kill in kills)] == []
    if variant == "rules":
        kills = [kill for kill in kills if kill.call.startswith("iptables")]
    world.start_daemon()
    states = States(original, world.idle_state())
    struck = set[str]()
    # After each kill the daemon starts again; after every other one, what it left is removed before that.
    for kill, recover in zip(kills, itertools.cycle((restart, clean_up))):
        print(kill)
        world.faults.plan(kill)
        transfer = cap_and_free(world)
        # A share of steering that lingers is not made again: then the cycle has fewer calls of that name.
        if steering and kill.first > 1:
            eventually(lambda: is_dead_or_idle(world, states, transfer), "dead, or done")  # noqa: B023
            if world.daemon.exit_status is None:
                assert transfer.wait().intact
                continue
        assert world.daemon.wait(30) == -signal.SIGKILL
        struck.add(kill.call)
        recover(world, states, transfer)
    assert struck == {kill.call for kill in kills}
    world.daemon.stop()
    assert world.state() == original
    assert world.services.records == []


def test_kernel_recovers_from_a_daemon_killed_at_a_class_deletion(world: FaultyWorld) -> None:
    world.services.configure_daemon(classifier="auto", pacing=False)
    world.proxy.tc(PLAIN)
    before = world.state()
    world.start_daemon()
    for kind in (KILL, KILL_AFTER):
        # Without Wi-Fi the limit applies: HTB stays, and the class of the cap is deleted when it has lingered.
        world.services.ask("set_rate", "ethernet", "downlink", "limit", "5mbit", None)
        world.faults.plan(Fault(kind, "tc class del"))
        transfer = cap_and_free(world)
        assert world.daemon.wait(30) == -signal.SIGKILL
        world.start_daemon()
        world.services.ask("reset_rate", "ethernet")
        wait_as_planned_and_restored(world, before, transfer)
    world.daemon.stop()
    assert world.services.records == []


@dataclass(frozen=True)
class Toggled:
    """One transfer per client; setting the rate caps all of them, or frees all of them, in one step of the daemon."""

    world: FaultyWorld
    variant: str
    before: dict[str, str]

    def cap(self) -> str:
        """What the operator is told."""
        return self._told(lambda: self.world.services.ask("reset_rate", "ethernet"))

    def free(self) -> str:
        return self._told(lambda: self.world.services.ask("set_rate", "ethernet", "downlink", "cap", None, None))

    def _told(self, ask: Callable[[], Json]) -> str:
        try:
            ask()
        except RpcError as refusal:
            return str(refusal)
        return ""

    def is_capped(self) -> bool:
        return len(self.world.held()) == len(CLIENTS) and self.world.is_as_planned()

    def is_free(self) -> bool:
        return not self.world.errors() and self.world.state() == self.before

    def told_while(self, change: Callable[[], str], *faults: Fault) -> str:
        """What the operator is told of a change with these faults; all are as they were before it, without faults."""
        self.world.faults.plan()
        if change == self.free:
            self.cap()
            self.wait_capped()
        else:
            self.free()
            self.wait_free()
        self.world.faults.plan(*faults)
        return change()

    def wait_capped(self, when: str = "") -> None:
        eventually(self.is_capped, f"capped {when}", within=3)

    def wait_free(self, when: str = "") -> None:
        eventually(self.is_free, f"free {when}", within=3)


@pytest.fixture(scope="module", params=PACKET_CLASSIFIERS)
def toggled(request: pytest.FixtureRequest, world: FaultyWorld) -> Iterator[Toggled]:
    world.services.configure_daemon(classifier=request.param)
    world.proxy.tc(TREE)
    before = world.state()
    world.start_daemon()
    for client in world.lab.clients.values():
        world.download(client=client, rate_limit=Rate(MEGABYTE))
    world.wait_capped(len(CLIENTS))
    toggled = Toggled(world, request.param, before)
    toggled.free()
    eventually(toggled.is_free, "free")
    yield toggled
    world.faults.plan()
    toggled.cap()  # the operator state outlives the daemon
    world.abort()
    assert world.daemon.exit_status is None
    assert world.daemon.stop() == 0
    assert world.state() == before
    assert world.services.records == []


@dataclass(frozen=True)
class Case:
    """A fault while all clients are capped, and how many of them are capped all the same."""

    fault: Fault
    capped: int = 0

    def __str__(self) -> str:
        return f"{self.fault.call} (from the {self.fault.first}. on): {self.fault.kind}"


def cases(toggled: Toggled, change: Callable[[], str], done: Callable[[], bool]) -> list[Case]:
    """The calls that a change takes, in their order, each refused.

    A call that changes something is refused with each error; if it is made once for each client, only from the second
    client on too: in the middle of a batch. A call that only reads is refused with one error.
    """
    toggled.world.faults.plan()
    change()
    eventually(done, "done")
    # A failure to pace sockets, or to observe what flows, keeps no subflow from being capped or freed.
    calls = [
        call for call in toggled.world.faults.calls() if not call.startswith(("ss -t", "bpf ", "tc -s class show"))
    ]
    if toggled.variant != "nft":
        # With nft, the other calls are refused, and those for classes with every error.
        calls = [call for call in calls if call.startswith(("iptables", "tc class", "tc filter"))]
    found, kinds = [], set[str]()
    for number, (call, count) in enumerate(Counter(calls).items()):
        one_client = " classid " in call
        kind = re.sub(r"classid \S+", "", call)
        error = ERRORS[number % len(ERRORS)]
        met = kind in kinds or (toggled.variant != "nft" and one_client)
        for some in (error,) if met or not changes_anything(call) else ERRORS:
            found.append(Case(Fault(some, call, times=FOREVER), len(CLIENTS) - 1 if one_client else 0))
        if changes_anything(call) and count == len(CLIENTS):
            found.append(Case(Fault(error, call, first=2, times=FOREVER), 1))
        kinds.add(kind)
    return found


def test_subflow_stays_free_while_a_call_that_caps_it_fails(toggled: Toggled) -> None:
    world = toggled.world
    refused = cases(toggled, toggled.cap, toggled.is_capped)
    assert len({case.fault.call for case in refused if changes_anything(case.fault.call)}) >= 4
    for case in refused:
        call, told = case.fault.call, f"{case.fault.call}: {case.fault.kind}"
        # On a busy host a path may count as stalled for a moment: then nothing is capped, and nothing is refused.
        eventually(lambda: told in toggled.told_while(toggled.cap, case.fault), f"told of {case}")  # noqa: B023
        assert any(line.startswith(told) for line in world.errors())
        if case.fault.kind == ERRORS[0]:
            tried = world.faults.calls().count(call)
            eventually(lambda: world.faults.calls().count(call) > tried, f"tried again after {case}")  # noqa: B023
        # If the reading back fails, each attempt caps until then.
        assert len(world.held()) <= case.capped or not changes_anything(call)
        # Freeing takes a second at most; that the others are capped may take a retry.
        within = 3 if case.capped else 1
        eventually(lambda: len(world.held()) == case.capped, f"{case.capped} capped after {case}", within)  # noqa: B023
        world.faults.plan()
        toggled.wait_capped(f"after {case}")
    toggled.free()


def test_subflow_is_freed_while_a_call_that_frees_it_fails(toggled: Toggled) -> None:
    world, log = toggled.world, toggled.world.services.log
    toggled.cap()
    toggled.wait_capped()
    refused = cases(toggled, toggled.free, toggled.is_free)
    assert len({case.fault.call for case in refused if changes_anything(case.fault.call)}) >= 4

    def is_told(case: Case) -> bool:
        told, line = toggled.told_while(toggled.free, case.fault), f"{case.fault.call}: {case.fault.kind}"

        # A failure that keeps nothing from being restored is in the log only.
        def found() -> bool:
            return line in "".join([told, *world.errors(), log()])

        # A daemon that is kept waiting skips calls: a class that has lingered long enough is not drained first.
        eventually(lambda: found() or toggled.is_free(), f"told of {case}, or free")
        return found()

    for case in refused:
        eventually(lambda: is_told(case), f"told of {case}")  # noqa: B023
        assert world.held() == {}
        world.faults.plan()
        toggled.wait_free(f"after {case}")


@pytest.mark.parametrize(
    ("toggled", "calls"),
    [
        ("nft", ("nft add element", "tc class")),
        ("nft", ("nft", "tc class")),
        ("nft", ("nft add element", "nft delete table", "tc class")),
        ("nft", ("nft list", "tc class", "tc filter show")),
        ("nft", ("nft list", "nft add element", "nft delete table", "record")),
        ("nft", ("nft add element", "nft delete table", "tc qdisc replace")),
        ("nft", ("nft add element", "nft delete table", "tc class", "record")),
        ("rules", ("iptables-legacy -t mangle", "tc class")),
        ("rules", ("iptables-legacy -t mangle -S", "tc class", "tc filter show")),
        ("rules", ("iptables-legacy -t mangle -S", "iptables-legacy -t mangle -F", "record")),
        ("rules", ("iptables-legacy: ", "iptables-legacy -t mangle -F", "tc qdisc replace")),
        ("rules", ("iptables-legacy: ", "iptables-legacy -t mangle -F", "tc class", "record")),
    ],
    indirect=["toggled"],
)
def test_subflow_is_freed_while_several_calls_fail(toggled: Toggled, calls: tuple[str, ...]) -> None:
    world = toggled.world
    faults = [Fault("EBUSY", call, times=FOREVER) for call in calls]
    eventually(lambda: "EBUSY" in toggled.told_while(toggled.free, *faults), "told of the failures")
    assert world.held() == {}
    world.faults.plan()
    toggled.wait_free()


def test_saved_qdisc_is_restored_after_our_qdisc_was_deleted(toggled: Toggled) -> None:
    delete = ("tc", "qdisc", "del", "dev", "eth0", "root", "handle", "4d50:")
    world = toggled.world

    def cap_and_delete(*, kill: bool) -> None:
        toggled.cap()
        toggled.wait_capped()
        if kill:
            world.daemon.kill()
        world.proxy.run(*delete)

    cap_and_delete(kill=False)
    toggled.wait_capped("again")
    toggled.free()
    toggled.wait_free()

    cap_and_delete(kill=True)
    world.start_daemon()
    eventually(toggled.is_capped, "capped by the next daemon", within=2)
    toggled.free()
    toggled.wait_free()

    cap_and_delete(kill=True)
    world.services.clean_up()
    assert world.state() == toggled.before
    world.start_daemon()
