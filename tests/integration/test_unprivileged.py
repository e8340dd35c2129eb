"""Both services do all their work as the user and with the rights of their units; with less they say what is missing.

Users, directories and the lock of iptables(8) are made by systemd's own tools from our `sysusers.d` and `tmpfiles.d`,
in a directory of the lab; each program has them bound over the machine's, in a mount namespace of its own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from passing_program import programs_at
from polling import eventually
from proxy_world import EXECUTABLES, LONG, Hosts, ProxyWorld, attended, receive_rates, unique

from mptcp_lab.kernel_dump import kernel_state
from mptcp_lab.process import run
from mptcp_lab.services import Services
from mptcp_throttle.linux.libbpf import AttachType

if TYPE_CHECKING:
    from mptcp_lab.host import Host
    from mptcp_lab.process import Process

SYSTEMD: Final = Path(__file__).parents[2] / "systemd"
# include/uapi/linux/capability.h
CAPABILITY_BITS: Final = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13, "CAP_PERFMON": 38, "CAP_BPF": 39}

RESTRICTED: Final = (
    ("mptcp-sniffer", "CAP_NET_ADMIN"),
    ("mptcp-throttled", "CAP_BPF"),
    ("mptcp-throttled", "CAP_PERFMON"),
)
"""A service works without this capability, and says what it cannot do."""

# $1: the directory that holds what is bound over the machine's files; $2: the umask.
ENTER: Final = """\
for file in /etc/passwd /etc/group /run/xtables.lock; do mount --bind "$1$file" "$file" || exit; done
umask "$2"
shift 2
unset XTABLES_LOCKFILE
exec "$@"
"""


def directives(name: str) -> dict[str, list[str]]:
    """The settings of our unit `name`, each with its words."""
    lines = (SYSTEMD / f"{name}.service").read_text(encoding="ascii").splitlines()
    settings = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
    return {key: value.split() for key, _, value in settings}


SERVICES: Final = ("mptcp-sniffer", "mptcp-throttled")
CLEAN_UP: Final = "mptcp-throttled-cleanup"
UNITS: Final = {name: directives(name) for name in (*SERVICES, CLEAN_UP)}
GRANTED: Final = [(name, capability) for name in SERVICES for capability in UNITS[name]["AmbientCapabilities"]]


class InUnits(Services):
    """The services as systemd starts them: user, groups, umask, capabilities, no new privileges, and directories."""

    def __init__(self, proxy: Host, name: str) -> None:
        super().__init__(proxy, name=name)
        self.root = self.directory / "root"
        (self.root / "etc").mkdir(parents=True)
        run(["systemd-sysusers", f"--root={self.root}", SYSTEMD / "sysusers.d" / "mptcp-throttle.conf"])
        run(["systemd-tmpfiles", f"--root={self.root}", "--create", SYSTEMD / "tmpfiles.d" / "mptcp-throttle.conf"])
        (self.directory / "run").symlink_to(self.root / "run" / "mptcp-throttle")
        daemon = UNITS["mptcp-throttled"]
        state = self.directory / "state"
        state.mkdir()
        state.chmod(int(daemon["StateDirectoryMode"][0], 8))
        os.chown(state, self.user_id("mptcp-throttled"), self.group_id("mptcp-throttled"))
        self.config.write_text(self.config.read_text().replace("socket_group: root", "socket_group: mptcp-throttle"))

    def user_id(self, name: str) -> int:
        """Of one of the users that our sysusers.d makes."""
        return self._id("passwd", name)

    def group_id(self, name: str) -> int:
        """Of one of the groups that our sysusers.d makes."""
        return self._id("group", name)

    def _id(self, file: str, name: str) -> int:
        entries = [line.split(":") for line in (self.root / "etc" / file).read_text(encoding="ascii").splitlines()]
        (identifier,) = (entry[2] for entry in entries if entry[0] == name)
        return int(identifier)

    def command(
        self, name: str, *arguments: str, without: str | None = None, unit_name: str | None = None
    ) -> list[str | Path]:
        """The command line that starts a program with the rights of its unit, but `without` one capability."""
        unit = UNITS[unit_name or name]
        granted = _setpriv_names(unit["AmbientCapabilities"], without)
        bounding = _setpriv_names(unit["CapabilityBoundingSet"], without)
        assert unit["NoNewPrivileges"] == ["yes"]
        supplementary = unit.get("SupplementaryGroups")
        groups = ("--clear-groups",) if supplementary is None else ("--groups", ",".join(supplementary))
        user = ("setpriv", "--reuid", *unit["User"], "--regid", *unit["Group"], *groups, "--no-new-privs")
        rights = ("--inh-caps", granted, "--ambient-caps", granted, "--bounding-set", bounding)
        service: list[str | Path] = [EXECUTABLES / name, "--config", self.config, *arguments]
        return self.enter(*user, *rights, *service, umask=unit["UMask"][0])

    def enter(self, *argv: str | Path, umask: str = "022") -> list[str | Path]:
        """The command line that runs `argv` with the users and files of our units."""
        return ["unshare", "--mount", "sh", "-c", ENTER, "sh", self.root, umask, *argv]

    def cli_as(self, groups: str, *arguments: str) -> tuple[int, str, str]:
        """Exit status, stdout and stderr of the CLI, run by an unprivileged user in `groups`."""
        return self.run_as("65534", groups, EXECUTABLES / "mptcp-throttle", "--config", self.config, *arguments)

    def run_as(self, user: str, groups: str, *argv: str | Path) -> tuple[int, str, str]:
        """Exit status, stdout and stderr of a command, run by `user` in `groups` without any capability."""
        rights = ("setpriv", "--reuid", user, "--regid", "65534", "--groups", groups, "--bounding-set", "-all")
        result = self.proxy.run(*self.enter(*rights, *argv), check=False)
        return result.returncode, result.stdout, result.stderr.strip()

    def _start(self, name: str) -> Process:
        return self.proxy.start(name, *self.command(name), machine_files=True)


def _setpriv_names(capabilities: Sequence[str], without: str | None) -> str:
    """These capabilities alone, in the syntax of setpriv(1)."""
    return ",".join(["-all", *(f"+{c.removeprefix('CAP_').lower()}" for c in capabilities if c != without)])


def process_status(process: Process) -> Mapping[str, str]:
    lines = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def capabilities(mask: str) -> set[str]:
    """The names of a set in /proc/PID/status; a bit that none of our units grants is named by its number."""
    names = {bit: name for name, bit in CAPABILITY_BITS.items()}
    return {names.get(bit, str(bit)) for bit in range(64) if int(mask, 16) >> bit & 1}


@pytest.fixture
def services(hosts: Hosts) -> InUnits:
    """Configured, not started."""
    # Ours is bound over that of iptables(8), which creates its own when it runs.
    Path("/run/xtables.lock").touch(mode=0o600)
    return InUnits(hosts.lab.proxy, unique("in-units"))


@pytest.fixture
def world(hosts: Hosts, services: InUnits) -> Iterator[ProxyWorld]:
    with attended(hosts, services) as running, services:
        yield running


def test_services_cap_and_restore_with_the_rights_of_their_units(world: ProxyWorld, services: InUnits) -> None:
    cli_group, lock_group = map(services.group_id, ("mptcp-throttle", "mptcp-xtables"))
    for name, process, groups in (
        ("mptcp-sniffer", world.sniffer, set()),
        ("mptcp-throttled", world.daemon, {cli_group, lock_group}),
    ):
        status = process_status(process)
        assert status["Uid"].split() == [str(services.user_id(name))] * 4
        assert status["Gid"].split() == [str(services.group_id(name))] * 4
        assert ({int(group) for group in status["Groups"].split()}, status["NoNewPrivs"]) == (groups, "1")
        for which in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
            assert capabilities(status[which]) == set(UNITS[name]["AmbientCapabilities"]), f"{name}: {which}"
        assert capabilities(status["CapBnd"]) == set(UNITS[name]["CapabilityBoundingSet"]), name

    (capped,) = world.begin_settled()
    assert (capped.network, capped.rate) == ("ethernet", 1_000_000)
    assert "htb 4d50:" in world.qdisc()
    status = services.status()["daemon"]
    assert [status["features"][name]["problem"] for name in ("steering", "pacing")] == [None, None]
    assert (status["held_subflows"], status["paced_subflows"]) == (1, 0)
    assert len(world.assignments()) == 1
    assert receive_rates(world.lab.client, 3)["eth0"] < 1.3e6

    changed, _, _ = services.cli_as(str(cli_group), "set-rate", "ethernet", "5mbit")
    assert changed == 0
    assert world.capped()[0].rate == 5_000_000
    assert (services.directory / "state" / "overrides.json").is_file()
    refused, _, line = services.cli_as("65534", "status")
    assert (refused, line) == (os.EX_NOPERM, f"{services.sockets.daemon}: permission denied; its group may use it")

    assert (world.daemon.stop(), world.sniffer.stop()) == (0, 0)
    assert kernel_state(world.proxy) == world.original


def test_other_users_take_no_lock_and_do_not_reach_the_daemon(world: ProxyWorld, services: InUnits) -> None:
    sniffer = str(services.user_id("mptcp-sniffer")), str(services.group_id("mptcp-sniffer"))
    status, _, line = services.run_as(*sniffer, EXECUTABLES / "mptcp-throttle", "--config", services.config, "pause")
    assert (status, line) == (os.EX_NOPERM, f"{services.sockets.daemon}: permission denied; its group may use it")
    for path in (services.sockets.daemon.parent / "file", services.directory / "state" / "file"):
        status, _, line = services.run_as(*sniffer, "touch", path)
        assert (status != 0, "Permission denied" in line) == (True, True), path
    assert services.status()["sniffer"]["connected"]

    sockets, group = services.sockets, str(services.group_id("mptcp-throttle"))
    world.daemon.kill()
    locks = (sockets.sniffer.with_name("mptcp-sniffer.lock"), sockets.daemon.with_name("mptcp-throttled.lock"))
    for lock in (Path("/run/xtables.lock"), *locks):
        status, _, line = services.run_as("65534", group, "flock", "-n", lock, "true")
        assert (status != 0, "Permission denied" in line) == (True, True), lock


def test_namespace_lock_of_the_units_user_refuses_root(world: ProxyWorld) -> None:
    by_hand = Services(world.proxy, name=unique("by-hand"))
    result = world.proxy.run(EXECUTABLES / "mptcp-throttled", "--config", by_hand.config, check=False)
    owner = f"process {world.daemon.pid}, {world.services.config}"
    line = f"mptcp-throttled is running already in this network namespace: {owner}\n"
    assert (result.returncode, result.stderr) == (os.EX_TEMPFAIL, line)


def test_cleanup_after_kill_9_works_as_the_units_user(
    world: ProxyWorld, before: dict[str, str], services: InUnits
) -> None:
    world.begin_capped()
    world.wait_restrained()
    world.daemon.kill()
    assert kernel_state(world.proxy) != before
    world.wait_restrained()
    world.proxy.run(*services.command("mptcp-throttled", "--cleanup", unit_name=CLEAN_UP), machine_files=True)
    assert kernel_state(world.proxy) == world.original
    assert world.restrained() == set()


@pytest.mark.parametrize("then", [CLEAN_UP, "mptcp-throttled"])
def test_program_that_a_killed_daemon_has_attached_is_detached(world: ProxyWorld, services: InUnits, then: str) -> None:
    group = str(services.group_id("mptcp-throttle"))
    assert services.cli_as(group, "set-rate", "--uplink", "ethernet", "1mbit")[0] == 0
    world.upload(LONG)
    eventually(lambda: any(s.uplink_kind == "cap" for s in services.subflows()), "the uplink capped")
    world.daemon.kill()
    (program,) = programs_at(world.proxy, AttachType.TCX_EGRESS)
    if then == CLEAN_UP:
        world.proxy.run(*services.command("mptcp-throttled", "--cleanup", unit_name=then), machine_files=True)
        assert programs_at(world.proxy, AttachType.TCX_EGRESS) == ()
    else:
        world.start_daemon()
        assert program not in programs_at(world.proxy, AttachType.TCX_EGRESS)


@pytest.mark.parametrize(("name", "capability"), [pair for pair in GRANTED if pair not in RESTRICTED])
def test_service_without_a_required_capability_refuses_to_start(
    hosts: Hosts, services: InUnits, name: str, capability: str
) -> None:
    result = hosts.lab.proxy.run(*services.command(name, without=capability), check=False)
    assert result.stderr == f"missing capability: {capability}; run as root or grant it in the unit\n"
    assert result.returncode == os.EX_NOPERM


def test_sniffer_without_cap_net_admin_works_without_kernel_list(hosts: Hosts, services: InUnits) -> None:
    sniffer = hosts.lab.proxy.start("limited", *services.command("mptcp-sniffer", without="CAP_NET_ADMIN"))
    sniffer.wait_until(services.captures, "capturing")
    assert capabilities(process_status(sniffer)["CapEff"]) == {"CAP_NET_RAW"}
    problem = "the kernel list cannot be read (needs CAP_NET_ADMIN)"
    assert services.ask_sniffer("status")["kernel_view"]["problem"] == problem
    assert "needs CAP_NET_ADMIN" in sniffer.log_text()
    assert sniffer.stop() == 0


@pytest.mark.parametrize("capability", ["CAP_BPF", "CAP_PERFMON"])
def test_daemon_without_the_kernel_program_throttles_with_htb_alone(
    hosts: Hosts, services: InUnits, capability: str
) -> None:
    sniffer, command = services.start_sniffer(), services.command("mptcp-throttled", without=capability)
    daemon = services.daemon = hosts.lab.proxy.start("limited", *command, machine_files=True)
    services.wait_ready()
    world = ProxyWorld(hosts.lab, hosts.origin, services)
    world.begin_settled()
    problem = services.status()["daemon"]["features"]["pacing"]["problem"]
    assert problem.startswith("load throttle.bpf.o: E")
    assert problem.endswith(f"(missing: {capability})")
    assert f"pacing: missing, so a cap slows down the whole connection: {problem}" in daemon.log_text()
    assert world.restrained() == set()
    world.abort()
    assert (daemon.stop(), sniffer.stop()) == (0, 0)


def close_iptables_lock(world: ProxyWorld, services: InUnits, classifier: str) -> None:
    """Start the daemon with this classifier, and without access to the lock."""
    world.daemon.stop()
    services.configure_daemon(classifier=classifier)
    (services.root / "run" / "xtables.lock").chmod(0o600)
    world.start_daemon()


def test_inaccessible_iptables_lock_is_one_error_and_caps_no_subflow(world: ProxyWorld, services: InUnits) -> None:
    close_iptables_lock(world, services, "rules")
    world.download()
    eventually(lambda: bool(world.errors()), "the error reported")
    assert world.errors() == [
        "open /run/xtables.lock: EACCES (tmpfiles.d/mptcp-throttle.conf makes it writable for mptcp-xtables)"
    ]
    assert (world.capped(), world.assignments()) == ([], [])
    assert world.daemon.stop() == 0
    assert kernel_state(world.proxy) == world.original
    assert [line for line in world.daemon.log_text().splitlines() if "EACCES" in line and "ERROR" in line] != []


@pytest.mark.parametrize("classifier", ["socket", "nft"])
def test_other_classifiers_need_no_access_to_the_iptables_lock(
    world: ProxyWorld, services: InUnits, classifier: str
) -> None:
    close_iptables_lock(world, services, classifier)
    world.begin_settled()
    assert ("meta priority set" in world.chain()) == (classifier == "nft")
    assert world.errors() == []
    assert world.daemon.stop() == 0
    assert kernel_state(world.proxy) == world.original


def test_unwritable_state_directory_is_reported_in_one_line(hosts: Hosts, services: InUnits) -> None:
    shutil.chown(services.directory / "state", "root", "root")
    result = hosts.lab.proxy.run(*services.command("mptcp-throttled"), check=False)
    assert (result.returncode, result.stderr) == (
        os.EX_NOPERM,
        f"{services.directory}/state: cannot be written: Permission denied\n",
    )
