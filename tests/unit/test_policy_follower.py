"""What a proxy makes of the policies on the server: the newest that is signed and valid here, and nothing else."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest
from config_files import write_config
from policy_server import PolicyServer
from worlds import ManualClock

from mptcp_throttle.cli import main
from mptcp_throttle.config.fleet_section import FleetPolicySection
from mptcp_throttle.config.load import config_paths, load_again, load_config, load_with_policy
from mptcp_throttle.config.notes import notes_of
from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import ConfigError, UserError
from mptcp_throttle.policy_bundle.bundle import Bundle
from mptcp_throttle.policy_bundle.kept_policy import KeptPolicy, PolicyDirectory
from mptcp_throttle.policy_bundle.published import Announcement, PublishedPolicies
from mptcp_throttle.policy_bundle.signature import PrivateKey
from mptcp_throttle.rpc import Json
from mptcp_throttle.valkey.connection import ValkeyError
from mptcp_throttled.control import policy_follower
from mptcp_throttled.control.policy_follower import ANNOUNCE_SECONDS, RETRY_SECONDS, PolicyAdoption, is_news
from mptcp_throttled.control.running_config import RunningConfig
from mptcp_throttled.reporting.instruments import NAMESPACE, REGISTRY

KEY: Final = PrivateKey.new()
LOCAL: Final = "name: local\npreference: 1\nsubnets: [10.9.0.0/24]\n"
WIFI: Final = "name: wifi\npreference: 1\nsubnets: [10.2.0.0/24]\n"
LTE: Final = "name: lte\npreference: 2\nsubnets: [10.1.0.0/24]\ncap: 1mbit\n"
PHONE: Final = "name: phone\nnetworks: {lte: {addresses: [10.1.0.9]}}\n"
FILES: Final = {"networks.d/wifi.yaml": WIFI, "networks.d/lte.yaml": LTE, "clients.d/phone.yaml": PHONE}
POLICIES: Final = b"mptcp-throttle:policy:europe"


def service_text(directory: Path, fleet: str = "europe", more: str = "") -> str:
    return (
        "proxy: {interface: eth0, ports: [8080]}\n"
        f"state_directory: {directory}\n"
        "fleet:\n  url: valkey://localhost\n  name: proxy-1\n  share_clients: true\n"
        f"  policy: {{fleet: {fleet}, keys: [{KEY.public}]}}\n{more}"
    )


def bundle(number: int, cap: str = "1mbit", **files: str) -> Bundle:
    changed = {"networks.d/lte.yaml": LTE.replace("1mbit", cap), **files}
    return Bundle("europe", number, 1_796_000_000 + number, "alice", {**FILES, **changed})


@dataclass
class Proxy:
    """A proxy with files of its own, and a model of the daemon that reloads."""

    directory: Path
    server: PolicyServer = field(default_factory=PolicyServer)
    clock: ManualClock = field(default_factory=ManualClock)
    refuses_to_reload: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.path = write_config(self.directory, service_text(self.directory), local=LOCAL)
        self.start()

    def start(self) -> None:
        """As the daemon does, after whatever end of the last one."""
        self.running = RunningConfig(load_config(self.path), self.clock.time())
        section = FleetPolicySection(fleet="europe", keys=[str(KEY.public)])
        running = lambda: self.config  # noqa: E731
        self.adoption = PolicyAdoption(section, self.policies, running, self.load, self.reload, self.clock)

    @property
    def policies(self) -> PolicyDirectory:
        return PolicyDirectory(self.directory)

    @property
    def config(self) -> Config:
        return self.running.config

    def load(self, policy: object) -> Config:
        return load_with_policy(self.path, policy)  # type: ignore[arg-type]

    def reload(self) -> Json:
        if self.refuses_to_reload:
            return {"problems": self.refuses_to_reload}
        try:
            loaded: Config | ConfigError = load_again(self.path, self.config.policy)
        except ConfigError as error:
            loaded = error
        return {"problems": list(self.running.take(loaded, self.clock.time()).problems)}

    @property
    def published(self) -> PublishedPolicies:
        return PublishedPolicies(self.server.ask, "europe")

    def publish(self, *bundles: Bundle, key: PrivateKey = KEY) -> None:
        for each in bundles:
            self.put(each.version, key.sign(each))

    def put(self, number: int, content: bytes) -> None:
        hash_ = self.server.hashes.setdefault(POLICIES, {})
        assert isinstance(hash_, dict)
        hash_[b"%d" % number] = content

    def step(self) -> str | None:
        self.adoption.step(self.published)
        return self.adoption.problem

    @property
    def cap(self) -> str:
        """The present cap of LTE, or that there is no such network."""
        network = self.config.network("lte")
        return "local" if network is None else str(next(iter(network.rates.values())))

    @property
    def number(self) -> int | None:
        return None if self.config.policy is None else self.config.policy.version.number

    def reads(self) -> int:
        """How often a policy was read."""
        return sum(command[0] == b"HGET" for command in self.server.asked)


@pytest.fixture
def proxy(tmp_path: Path) -> Proxy:
    return Proxy(tmp_path)


def test_proxy_has_its_own_files_until_a_policy_is_published(proxy: Proxy) -> None:
    assert proxy.step() is None
    assert (proxy.cap, proxy.number) == ("local", None)
    assert proxy.adoption.status() == {"fleet": "europe", "in_use": None, "problem": None, "away": None}


def test_newest_policy_replaces_networks_and_devices(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    proxy.publish(bundle(3, "2mbit"), bundle(4, "3mbit"))
    assert proxy.step() is None
    assert (proxy.cap, proxy.number, len(proxy.config.devices)) == ("3mbit", 4, 1)
    assert proxy.config.network("local") is None
    digest = bundle(4, "3mbit").described.digest
    assert f"policy 4 ({digest[:12]}) of alice is adopted" in caplog.messages
    assert f"reloaded: policy null -> 4 ({digest[:12]})" in caplog.messages
    assert proxy.adoption.announcement().number == 4
    assert proxy.adoption.status()["in_use"]["author"] == "alice"


def test_restart_begins_with_the_policy_in_use(proxy: Proxy) -> None:
    proxy.publish(bundle(4, "3mbit"))
    proxy.step()
    proxy.start()
    assert (proxy.cap, proxy.number) == ("3mbit", 4)


def test_policy_in_use_is_not_read_again(proxy: Proxy) -> None:
    proxy.publish(bundle(4))
    for _ in range(5):
        proxy.step()
    assert proxy.reads() == 1


def test_roll_back_is_a_new_policy_with_old_files(proxy: Proxy) -> None:
    for number, cap in ((4, "3mbit"), (5, "9mbit"), (6, "3mbit")):
        proxy.publish(bundle(number, cap))
        proxy.step()
    assert (proxy.cap, proxy.number) == ("3mbit", 6)


@pytest.mark.parametrize("left", [(3,), ()])
def test_server_cannot_make_a_proxy_go_back(proxy: Proxy, left: tuple[int, ...]) -> None:
    """It shows an older policy with its true signature, or none, also after a restart."""
    proxy.publish(bundle(4, "3mbit"))
    proxy.step()
    proxy.server.hashes.clear()
    proxy.publish(*(bundle(number, "9mbit") for number in left))
    older = "policy 3, the newest on the server, is older than 4; allowed: a newer one"
    for _ in range(2):
        assert proxy.step() == (older if left else None)
        assert (proxy.cap, proxy.number) == ("3mbit", 4)
        proxy.start()
    assert proxy.reads() == 1


def test_same_number_with_other_files_changes_nothing(proxy: Proxy) -> None:
    proxy.publish(bundle(4, "3mbit"))
    proxy.step()
    proxy.publish(bundle(4, "9mbit"))
    proxy.step()
    assert (proxy.cap, proxy.number, proxy.reads()) == ("3mbit", 4, 1)


SIGNED: Final = KEY.sign(bundle(9))
NOT_SIGNED: Final = "policy 9: is not signed with a key of fleet.policy.keys"
FORGED: Final = {
    "other key": (PrivateKey.new().sign(bundle(9)), NOT_SIGNED),
    "last byte lost": (SIGNED[:-1], NOT_SIGNED),
    "cut off": (SIGNED[:50], "policy 9: is no signed policy"),
    "empty": (b"", "policy 9: is no signed policy"),
    "huge": (bytes(10 << 20), "policy 9: is too long; allowed: up to 8388721 bytes"),
    "other number": (KEY.sign(bundle(7)), "policy 9: is in truth policy 7"),
    "other fleet": (KEY.sign(replace(bundle(9), fleet="asia")), "policy 9: is for fleet asia; allowed: europe"),
}


def errors() -> float:
    return REGISTRY.get_sample_value(f"{NAMESPACE}_errors_total", {"stage": "policy"}) or 0.0


@pytest.mark.parametrize(("content", "problem"), FORGED.values(), ids=FORGED)
def test_what_is_not_of_the_fleet_is_refused_and_hides_no_policy(
    proxy: Proxy, content: bytes, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    before = errors()
    proxy.publish(bundle(4, "3mbit"))
    proxy.put(9, content)
    for _ in range(3):
        assert proxy.step() == problem
    assert (proxy.cap, proxy.number) == ("3mbit", 4)
    assert caplog.messages == [f"policy refused: {problem}"]
    assert errors() == before + 1
    assert proxy.reads() == 2


def test_flood_of_forged_policies_costs_one_reading_and_a_line_a_minute(
    proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    forged = FORGED["other key"][0]
    for number in range(100, 130):
        proxy.server.hashes.clear()
        for each in range(10):
            proxy.put(number * 10 + each, forged)
        assert proxy.step() == NOT_SIGNED.replace("9", str(number * 10 + 9))
        proxy.clock.now += 2
    assert proxy.reads() == 30
    assert len(caplog.messages) == 1


ALIASES: Final = "name: lte\npreference: 2\nsubnets: &a [10.1.0.0/24]\nmore: [*a, *a]\n"


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"networks.d/lte.yaml": "name: lte\n"}, "networks.d/lte.yaml:1: subnets: is required; allowed: subnets"),
        ({"networks.d/lte.yaml": ALIASES}, "networks.d/lte.yaml:4: is not valid YAML: aliases (*name) are not allowed"),
        ({"networks.d/lte.yaml": "[" * 1500}, "networks.d/lte.yaml: is nested too deeply"),
        ({"networks.d/lte.yaml": "#" * ((1 << 20) + 1)}, "networks.d/lte.yaml: is too large; allowed: up to 1MiB"),
        ({"networks.d/lte.yaml": f"{LTE}proxy: squid\n"}, "networks.d/lte.yaml:5: proxy: squid: is not in proxies of "),
        (
            {"networks.d/lte.yaml": f"{LTE}subnets_file: none\n"},
            "networks.d/lte.yaml:5: subnets_file: networks.d/none: ",
        ),
        ({"networks.d/two.yaml": "no\n", "networks.d/three.yaml": ""}, "networks.d/three.yaml: is empty; allowed: "),
    ],
)
def test_policy_that_is_not_valid_here_is_refused_in_one_line(
    proxy: Proxy, files: dict[str, str], problem: str
) -> None:
    proxy.publish(bundle(4, "3mbit"))
    proxy.step()
    proxy.publish(bundle(5, **files))
    shown = proxy.step()
    assert shown is not None
    assert shown.startswith(f"policy 5: {problem}")
    assert "\n" not in shown
    assert (proxy.cap, proxy.number) == ("3mbit", 4)
    assert not (proxy.directory / "policy/staged").exists()
    assert proxy.adoption.announcement().problem == shown
    proxy.publish(bundle(6, "5mbit"))
    assert proxy.step() is None
    assert (proxy.cap, proxy.number) == ("5mbit", 6)


@pytest.mark.parametrize("way", ["{}/", "../../../"])
def test_what_a_local_file_says_is_not_told_to_the_server(proxy: Proxy, way: str) -> None:
    (proxy.directory / "password").write_text("secret\n")
    name = f"{way.format(proxy.directory)}password"
    proxy.publish(bundle(5, **{"networks.d/lte.yaml": f"{LTE}subnets_file: {name}\n"}))
    assert "secret" in (proxy.step() or "")
    announced = proxy.adoption.announcement().problem or ""
    assert announced.startswith("policy 5: ")
    assert announced.endswith(f"{name}: the log of this proxy says why")


def test_older_policy_does_not_stand_in_for_one_that_is_not_valid_here(proxy: Proxy) -> None:
    proxy.publish(bundle(4, "3mbit"))
    proxy.step()
    proxy.publish(bundle(5, "9mbit"), bundle(6, **{"networks.d/lte.yaml": "name: lte\n"}))
    for _ in range(2):
        proxy.step()
        assert (proxy.cap, proxy.number) == ("3mbit", 4)


def test_policy_may_be_valid_at_one_proxy_and_not_at_another(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    first, second = Proxy(tmp_path / "one"), Proxy(tmp_path / "two")
    proxies = service_text(second.directory).replace(
        "proxy: {interface: eth0, ports: [8080]}", "proxies: {squid: {interface: eth0, ports: [8080]}}"
    )
    second.path.write_text(proxies)
    second.start()
    for proxy in (first, second):
        proxy.publish(bundle(5, **{"networks.d/lte.yaml": f"{LTE}proxy: squid\n"}))
        proxy.step()
    assert (first.number, second.number) == (None, 5)


def test_refused_policy_is_judged_once_and_again_after_a_reload(proxy: Proxy) -> None:
    """What it lacks may be on this host: here a file with an absolute path."""
    subnets = proxy.directory / "lte.txt"
    lte = LTE.replace("subnets: [10.1.0.0/24]", f"subnets_file: {subnets}")
    proxy.publish(bundle(5, **{"networks.d/lte.yaml": lte}))
    problem = f"policy 5: networks.d/lte.yaml:3: subnets_file: {subnets}: cannot be read: No such file or directory"
    for _ in range(10):
        assert proxy.step() == problem
        proxy.clock.now += RETRY_SECONDS
    assert proxy.reads() == 1
    subnets.write_text("10.1.0.0/24\n")
    assert (proxy.step(), proxy.reads()) == (problem, 1)
    proxy.reload()
    assert proxy.step() is None
    assert (proxy.number, proxy.reads()) == (5, 2)


def test_subnets_of_a_policy_are_beside_its_networks(proxy: Proxy) -> None:
    lte = LTE.replace("subnets: [10.1.0.0/24]", "subnets_file: lte.txt")
    proxy.publish(bundle(5, **{"networks.d/lte.yaml": lte, "networks.d/lte.txt": "10.1.0.0/24\r\n10.7.0.0/24\n"}))
    assert proxy.step() is None
    network = proxy.config.network("lte")
    assert network is not None
    assert [str(subnet) for subnet in network.subnets] == ["10.1.0.0/24", "10.7.0.0/24"]
    assert (proxy.directory / "policy/europe.5/networks.d/lte.txt").read_bytes() == b"10.1.0.0/24\r\n10.7.0.0/24\n"
    assert proxy.directory / "policy/europe.5/networks.d/lte.txt" in config_paths(proxy.path)


def test_local_change_that_needs_a_restart_keeps_the_policy(proxy: Proxy) -> None:
    proxy.path.write_text(service_text(proxy.directory).replace("8080", "8081"))
    proxy.publish(bundle(4))
    assert proxy.step() == "policy 4: proxy.ports 8080 -> 8081: needs a restart of mptcp-sniffer and mptcp-throttled"
    assert proxy.number is None
    assert not (proxy.directory / "policy/current").exists()
    proxy.start()
    assert proxy.step() is None
    assert proxy.number == 4


def test_server_that_is_away_changes_nothing(proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    proxy.publish(bundle(4, "3mbit"))
    proxy.step()
    proxy.server.is_away = True
    for _ in range(2):
        with pytest.raises(ValkeyError) as error:
            proxy.step()
        proxy.adoption.note_away(str(error.value))
    assert (proxy.cap, proxy.number) == ("3mbit", 4)
    assert caplog.messages == ["no policies of the fleet: 10.0.0.1:6379: does not answer"]
    assert proxy.adoption.status()["away"] == "10.0.0.1:6379: does not answer"
    proxy.server.is_away = False
    proxy.step()
    assert proxy.adoption.status()["away"] is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("WRONGTYPE Operation against a key", "the server refuses: WRONGTYPE Operation against a key"),
        ({b"%d" % number: b"" for number in range(100, 1000)}, "the server has more than 16 policies, or none of ours"),
        ({b"9" * 500: b""}, "the server has more than 16 policies, or none of ours"),
    ],
)
def test_hash_that_is_none_of_policies_is_refused(
    proxy: Proxy, content: dict[bytes, bytes] | str, problem: str
) -> None:
    proxy.server.hashes[POLICIES] = content
    with pytest.raises(ValkeyError) as error:
        proxy.step()
    assert str(error.value) == problem


def test_fields_that_are_no_numbers_are_ignored(proxy: Proxy) -> None:
    proxy.publish(bundle(4))
    for name in (b"", b"-5", b"1e3", b"0", b"4.5", b"\xff", b"9999999999", b"\xd9\xa3"):
        proxy.server.hashes[POLICIES][name] = b"x"  # type: ignore[index]
    assert proxy.step() is None
    assert (proxy.number, proxy.reads()) == (4, 1)


def test_kill_between_writing_and_reloading_loses_nothing(proxy: Proxy) -> None:
    proxy.publish(bundle(4, "3mbit"))
    proxy.refuses_to_reload = ["busy"]
    assert (proxy.step(), proxy.number) == ("policy 4: busy", None)
    proxy.refuses_to_reload = []
    proxy.start()
    assert (proxy.cap, proxy.number) == ("3mbit", 4)
    assert proxy.step() is None


def test_written_policy_is_used_later_if_the_reload_was_refused(proxy: Proxy) -> None:
    proxy.publish(bundle(4, "3mbit"))
    proxy.refuses_to_reload = ["busy"]
    proxy.step()
    proxy.server.hashes.clear()
    proxy.refuses_to_reload = []
    assert proxy.step() == "policy 4: busy"
    proxy.clock.now += RETRY_SECONDS
    assert proxy.step() is None
    assert (proxy.cap, proxy.reads()) == ("3mbit", 1)


def test_written_policy_is_not_written_again_while_reloads_are_refused(proxy: Proxy) -> None:
    """A kill while it was replaced would leave neither of the two."""
    adopted(proxy, 3)
    proxy.publish(bundle(4, "4mbit"))
    proxy.refuses_to_reload = ["busy"]
    proxy.step()
    written = (proxy.directory / "policy/europe.4").stat().st_ino
    for _ in range(3):
        proxy.clock.now += RETRY_SECONDS
        assert proxy.step() == "policy 4: busy"
    assert (proxy.directory / "policy/europe.4").stat().st_ino == written
    proxy.refuses_to_reload = []
    proxy.clock.now += RETRY_SECONDS
    assert proxy.step() is None
    assert (proxy.cap, proxy.reads()) == ("4mbit", 2)


def test_policy_before_stays_when_a_damaged_one_is_replaced(proxy: Proxy) -> None:
    adopted(proxy, 3, 4)
    for _ in range(2):
        DAMAGES["no yaml"].do(proxy, 4)
        proxy.start()
        assert proxy.cap == "3mbit"
        assert proxy.step() is None
        assert proxy.cap == "4mbit"


def test_busy_daemon_refuses_in_one_line(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy() -> Json:
        raise UserError("not accepted in 5 s: busy; see status")

    monkeypatch.setattr(proxy.adoption, "_reload", busy)
    proxy.publish(bundle(4))
    assert proxy.step() == "policy 4: not accepted in 5 s: busy; see status"


class Killed(BaseException):
    """As kill -9: nothing is cleaned up."""


def recorded(made: list[str], name: str, call: Callable[..., object], kill_at: int) -> Callable[..., object]:
    """The method of a path, which is killed instead if it is that one of all calls."""

    def run(path: Path, *arguments: object, **options: object) -> object:
        made.append(name)
        if len(made) == kill_at:
            raise Killed
        return call(path, *arguments, **options)

    return run


def step_until_killed(proxy: Proxy, monkeypatch: pytest.MonkeyPatch, kill_at: int) -> int:
    """Adopt a policy, but for what comes from a change of files on; how many changes there were."""
    made: list[str] = []
    with monkeypatch.context() as patch, suppress(Killed):
        for name in ("unlink", "symlink_to", "replace", "rename", "mkdir"):
            patch.setattr(Path, name, recorded(made, name, getattr(Path, name), kill_at))
        proxy.step()
    return len(made)


def test_kill_at_any_change_leaves_the_old_or_the_new_policy(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy.publish(bundle(1, "1mbit"))
    proxy.step()
    kill_at, number, were_left = 1, 2, set()
    while True:
        cap, before = f"{number}mbit", proxy.number
        proxy.publish(bundle(number, cap))
        is_last = step_until_killed(proxy, monkeypatch, kill_at) < kill_at
        proxy.start()
        assert proxy.number in {before, number}
        were_left.add(proxy.number == number)
        proxy.step()
        assert (proxy.cap, proxy.number) == (cap, number)
        left = sorted(path.name for path in (proxy.directory / "policy").iterdir())
        assert left == sorted(["current", f"europe.{before}", f"europe.{number}"])
        if is_last:
            break
        kill_at, number = kill_at + 1, number + 1
    assert kill_at > 7
    assert were_left == {False, True}


def test_full_disk_refuses_the_policy_and_leaves_nothing(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy.publish(bundle(4, "3mbit"))
    proxy.step()
    proxy.publish(bundle(5, "9mbit"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        assert proxy.step() == "policy 5: cannot be written: No space left on device"
    assert (proxy.cap, proxy.number) == ("3mbit", 4)
    assert not (proxy.directory / "policy/staged").exists()
    proxy.clock.now += RETRY_SECONDS
    assert proxy.step() is None
    assert proxy.number == 5


def test_only_the_policy_before_is_kept_besides(proxy: Proxy) -> None:
    for number in range(1, 6):
        proxy.publish(bundle(number))
        proxy.step()
    assert sorted(path.name for path in (proxy.directory / "policy").iterdir()) == ["current", "europe.4", "europe.5"]


def test_other_services_can_read_the_policy_whatever_the_umask(proxy: Proxy) -> None:
    proxy.publish(bundle(4))
    before = os.umask(0o077)
    try:
        proxy.step()
    finally:
        os.umask(before)
    paths = [proxy.directory / "policy", *(proxy.directory / "policy").rglob("*")]
    assert len(paths) > 6
    for path in paths:
        assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o644)


def test_policy_of_another_fleet_is_not_used(proxy: Proxy) -> None:
    proxy.publish(bundle(4))
    proxy.step()
    proxy.path.write_text(service_text(proxy.directory, fleet="asia"))
    assert load_config(proxy.path).policy is None
    assert load_config(proxy.path).network("local") is not None


DAMAGED: Final = ("", "[]", "{}", '{"number": "x"}', "[" * 100_000)


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_policy_is_in_use_while_the_daemon_runs(proxy: Proxy, text: str) -> None:
    proxy.publish(bundle(4))
    proxy.step()
    path = proxy.directory / "policy/europe.4/policy.json"
    path.write_text(text)
    (problem,) = proxy.reload()["problems"]
    assert str(path) in problem
    assert "\n" not in problem
    assert proxy.step() is None
    assert proxy.number == 4
    proxy.publish(bundle(5, "9mbit"))
    assert proxy.step() is None
    proxy.start()
    assert (proxy.cap, proxy.number) == ("9mbit", 5)


@dataclass(frozen=True)
class Damage:
    """A file of a policy, what is written to it (None: it is removed), and what is then said of it."""

    name: str
    content: bytes | None
    problem: str

    def do(self, proxy: Proxy, number: int) -> None:
        path = proxy.directory / f"policy/europe.{number}/{self.name}"
        if self.content is None:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        else:
            path.write_bytes(self.content)


AS_SIGNED: Final = "; allowed: files as they were signed"
NOT_AS_SIGNED: Final = f"policy.json: digest: is not that of the files beside it{AS_SIGNED}"
DAMAGES: Final = {
    **{f"description-{n}": Damage("policy.json", text.encode(), "policy.json: ") for n, text in enumerate(DAMAGED)},
    "no description": Damage("policy.json", None, "policy.json: cannot be read: No such file or directory"),
    "no yaml": Damage("networks.d/lte.yaml", b"name: [", "networks.d/lte.yaml:1: is not valid YAML: "),
    "zeros": Damage("networks.d/lte.yaml", bytes(4096), "networks.d/lte.yaml: is not valid YAML: "),
    "empty": Damage("networks.d/lte.yaml", b"", "networks.d/lte.yaml: is empty; allowed: "),
    "no text": Damage("clients.d/phone.yaml", b"\xff\xfe", "clients.d/phone.yaml: is not UTF-8 text (byte 0)"),
    "device": Damage("clients.d/phone.yaml", b"name: phone\n", "clients.d/phone.yaml:"),
    "other rate": Damage(
        "networks.d/lte.yaml", LTE.replace("1mbit", "99mbit").encode(), f"networks.d/lte.yaml: changed{AS_SIGNED}"
    ),
    "other ends of lines": Damage(
        "clients.d/phone.yaml", PHONE.replace("\n", "\r\n").encode(), f"clients.d/phone.yaml: changed{AS_SIGNED}"
    ),
    "no network": Damage("networks.d/wifi.yaml", None, "networks.d/lte.yaml:4: cap: "),
    "no device": Damage("clients.d/phone.yaml", None, f"clients.d/phone.yaml: removed{AS_SIGNED}"),
    "one more network": Damage("networks.d/local.yaml", LOCAL.encode(), f"networks.d/local.yaml: new{AS_SIGNED}"),
    "one more file": Damage("networks.d/lte.txt", b"", f"networks.d/lte.txt: new{AS_SIGNED}"),
    "one more without text": Damage("networks.d/lte.txt", b"\xff", f"networks.d/lte.txt: new{AS_SIGNED}"),
    "no networks": Damage("networks.d", None, "networks.d: cannot be read: No such file or directory"),
    "no files": Damage("", None, "policy.json: cannot be read: No such file or directory"),
}
each_damage = pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)


def adopted(proxy: Proxy, *numbers: int) -> None:
    """Adopt policies with caps of as many Mb/s as their numbers."""
    for number in numbers:
        proxy.publish(bundle(number, f"{number}mbit"))
        proxy.step()
    assert proxy.number == numbers[-1]


@each_damage
def test_damaged_policy_leaves_the_one_before_at_the_start(proxy: Proxy, damage: Damage) -> None:
    adopted(proxy, 3, 4)
    damage.do(proxy, 4)
    proxy.start()
    assert (proxy.cap, proxy.number, len(proxy.config.devices)) == ("3mbit", 3, 1)
    problem = proxy.adoption.status()["problem"]
    assert problem.startswith(f"policy 4: {damage.problem}")
    assert problem.endswith(f"; policy {bundle(3, '3mbit').described} is used instead")
    assert problem.isprintable()
    assert proxy.adoption.announcement().problem == problem
    # The server still has the newest.
    assert proxy.step() is None
    assert (proxy.cap, proxy.number, proxy.adoption.status()["problem"]) == ("4mbit", 4, None)
    assert proxy.adoption.announcement().problem is None
    proxy.start()
    assert (proxy.cap, proxy.number) == ("4mbit", 4)


@each_damage
def test_damaged_policy_with_none_before_leaves_local_files(proxy: Proxy, damage: Damage) -> None:
    adopted(proxy, 4)
    damage.do(proxy, 4)
    proxy.start()
    assert (proxy.cap, proxy.number) == ("local", None)
    problem = str(proxy.config.policy_problem)
    assert problem.startswith(f"policy 4: {damage.problem}")
    assert problem.endswith("; local files are used instead")
    assert proxy.directory / "networks.d/local.yaml" in config_paths(proxy.path)
    assert proxy.step() is None
    assert (proxy.cap, proxy.number) == ("4mbit", 4)


@each_damage
def test_damaged_policies_before_are_passed_over(proxy: Proxy, damage: Damage) -> None:
    adopted(proxy, 3, 4)
    for number in (3, 4):
        damage.do(proxy, number)
    proxy.start()
    assert (proxy.cap, proxy.number) == ("local", None)
    assert str(proxy.config.policy_problem).startswith(f"policy 4: {damage.problem}")


@each_damage
def test_policy_is_used_without_a_restart_once_it_can_be_read(proxy: Proxy, damage: Damage) -> None:
    """The operator mends it while the server is away; what was then damaged again does not lead back to local files."""
    adopted(proxy, 4)
    kept, copy = proxy.directory / "policy/europe.4", proxy.directory / "copy"
    shutil.copytree(kept, copy)
    proxy.server.is_away = True
    damage.do(proxy, 4)
    proxy.start()
    assert proxy.reload()["problems"] == []
    assert proxy.cap == "local"
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(copy, kept)
    assert proxy.reload()["problems"] == []
    assert (proxy.cap, proxy.config.policy_problem) == ("4mbit", None)
    damage.do(proxy, 4)
    problem = proxy.reload()["problems"][0]
    assert str(kept / damage.problem.partition(":")[0]) in problem
    assert proxy.cap == "4mbit"


def test_local_change_is_reloaded_beside_a_damaged_policy(proxy: Proxy) -> None:
    adopted(proxy, 3, 4)
    damage = DAMAGES["no yaml"]
    damage.do(proxy, 4)
    proxy.start()
    proxy.path.write_text(service_text(proxy.directory, more="log_level: debug\n"))
    assert proxy.reload()["problems"] == []
    assert (proxy.config.log_level, proxy.number) == ("debug", 3)
    # While it runs with the one before, it does not go back to local files.
    damage.do(proxy, 3)
    assert proxy.reload()["problems"] != []
    assert proxy.number == 3


def test_damaged_policy_does_not_let_the_server_make_a_proxy_go_back(proxy: Proxy) -> None:
    adopted(proxy, 4)
    DAMAGES["no yaml"].do(proxy, 4)
    proxy.server.hashes.clear()
    proxy.publish(bundle(3, "9mbit"))
    proxy.start()
    older = "policy 3, the newest on the server, is older than 4; allowed: a newer one"
    for _ in range(3):
        assert proxy.step() == older
    assert (proxy.cap, proxy.reads()) == ("local", 1)
    problem = proxy.adoption.status()["problem"]
    assert problem == f"{proxy.config.policy_problem}; {older}"


def test_damaged_link_does_not_let_the_server_make_a_proxy_go_back(proxy: Proxy) -> None:
    adopted(proxy, 3, 4)
    for number in (3, 4):
        DAMAGES["no yaml"].do(proxy, number)
    link = proxy.directory / "policy/current"
    link.unlink()
    link.write_text("")
    proxy.server.hashes.clear()
    proxy.publish(bundle(3, "9mbit"))
    proxy.start()
    assert proxy.step() == "policy 3, the newest on the server, is older than 4; allowed: a newer one"
    assert proxy.cap == "local"
    proxy.publish(bundle(4, "4mbit"))
    assert proxy.step() is None
    assert (proxy.cap, proxy.config.policy_problem) == ("4mbit", None)


def test_policy_that_is_damaged_again_at_once_is_tried_each_minute(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopted(proxy, 4)
    DAMAGES["no yaml"].do(proxy, 4)
    proxy.start()
    use = PolicyDirectory.use

    def use_and_damage(directory: PolicyDirectory, staged: KeptPolicy) -> None:
        use(directory, staged)
        DAMAGES["no yaml"].do(proxy, 4)

    with monkeypatch.context() as patch:
        patch.setattr(PolicyDirectory, "use", use_and_damage)
        for _ in range(3):
            assert proxy.step() == proxy.config.policy_problem
        assert (proxy.cap, proxy.reads()) == ("local", 2)
        assert proxy.adoption.status()["problem"] == proxy.config.policy_problem
    proxy.clock.now += RETRY_SECONDS
    assert proxy.step() is None
    assert (proxy.cap, proxy.reads()) == ("4mbit", 3)


def test_file_of_subnets_that_has_changed_is_found(proxy: Proxy) -> None:
    lte = LTE.replace("subnets: [10.1.0.0/24]", "subnets_file: lte.txt")
    proxy.publish(bundle(5, **{"networks.d/lte.yaml": lte, "networks.d/lte.txt": "10.1.0.0/24\r\n"}))
    proxy.step()
    (proxy.directory / "policy/europe.5/networks.d/lte.txt").write_text("10.1.0.0/16\n")
    proxy.start()
    problem = f"policy 5: networks.d/lte.txt: changed{AS_SIGNED}; local files are used instead"
    assert proxy.config.policy_problem == problem


@pytest.mark.parametrize(("name", "said"), [("lte.yaml~", "lte.yaml~"), (os.fsdecode(b"\xff\n"), r"\udcff\n")])
def test_added_file_with_a_name_of_no_policy_is_named_on_the_proxy_alone(proxy: Proxy, name: str, said: str) -> None:
    adopted(proxy, 4)
    (proxy.directory / "policy/europe.4/networks.d" / name).write_bytes(b"\xff")
    proxy.start()
    problem = f"policy 4: networks.d/{said}: new{AS_SIGNED}; local files are used instead"
    assert proxy.adoption.status()["problem"] == problem
    announced = f"policy 4: networks.d/{said}: the log of this proxy says why"
    assert proxy.adoption.announcement().problem == announced


def test_of_several_files_that_differ_the_first_is_named(proxy: Proxy) -> None:
    adopted(proxy, 4)
    for name in ("other rate", "no device", "one more file"):
        DAMAGES[name].do(proxy, 4)
    proxy.start()
    problem = f"policy 4: clients.d/phone.yaml: removed and 2 more{AS_SIGNED}; local files are used instead"
    assert proxy.config.policy_problem == problem


@pytest.mark.parametrize("digests", [None, "", "[]", '{"\\n": ""}', "[" * 100_000], ids=range(5))
def test_file_that_differs_is_not_named_where_an_earlier_build_wrote_it(proxy: Proxy, digests: str | None) -> None:
    """Or where the file that tells is damaged."""
    adopted(proxy, 4)
    Damage("digests.json", None if digests is None else digests.encode(), "").do(proxy, 4)
    DAMAGES["other rate"].do(proxy, 4)
    proxy.start()
    assert proxy.config.policy_problem == f"policy 4: {NOT_AS_SIGNED}; local files are used instead"


def test_digest_of_a_policy_that_has_changed_itself_is_named(proxy: Proxy) -> None:
    adopted(proxy, 4)
    path, digest = proxy.directory / "policy/europe.4/policy.json", bundle(4, "4mbit").described.digest
    path.write_text(path.read_text().replace(digest, digest[::-1]))
    proxy.start()
    assert proxy.config.policy_problem == f"policy 4: {NOT_AS_SIGNED}; local files are used instead"


def test_loss_of_a_file_that_makes_another_one_invalid_is_named_too(proxy: Proxy) -> None:
    """Without the more preferred network, the cap of the other one is a mistake."""
    adopted(proxy, 4)
    DAMAGES["no network"].do(proxy, 4)
    invalid, not_as_signed = proxy.reload()["problems"]
    kept = proxy.directory / "policy/europe.4"
    assert invalid.startswith(f"{kept}/networks.d/lte.yaml:4: cap: ")
    assert not_as_signed == f"{kept}/networks.d/wifi.yaml: removed{AS_SIGNED}"


def test_hidden_files_beside_those_of_a_policy_are_not_damage(proxy: Proxy) -> None:
    """An editor leaves them; no policy has one."""
    adopted(proxy, 4)
    (proxy.directory / "policy/europe.4/networks.d/.lte.yaml.swp").write_bytes(b"\xff")
    proxy.start()
    assert (proxy.cap, proxy.config.policy_problem) == ("4mbit", None)


def test_what_is_wrong_with_local_files_is_not_blamed_on_a_policy(proxy: Proxy) -> None:
    adopted(proxy, 4)
    proxy.path.write_text(service_text(proxy.directory, more="log_level: loud\n"))
    with pytest.raises(ConfigError) as error:
        load_config(proxy.path)
    assert all("log_level" in problem for problem in error.value.problems)


def test_policy_and_local_files_that_are_both_damaged_are_both_named(proxy: Proxy) -> None:
    adopted(proxy, 4)
    DAMAGES["no yaml"].do(proxy, 4)
    (proxy.directory / "networks.d/local.yaml").write_text("")
    with pytest.raises(ConfigError) as error:
        load_config(proxy.path)
    named = [problem.partition(":")[0] for problem in error.value.problems]
    paths = "policy/europe.4/networks.d/lte.yaml", "policy/europe.4/networks.d/lte.yaml", "networks.d/local.yaml"
    assert named == [str(proxy.directory / path) for path in paths]


def test_proxy_says_what_it_uses_since_when(proxy: Proxy) -> None:
    assert proxy.adoption.announcement() == Announcement(None, None, None, None, proxy.clock.time())
    proxy.publish(bundle(4))
    proxy.step()
    adopted_at = proxy.clock.time()
    proxy.clock.now += 500
    said = proxy.adoption.announcement()
    assert said == Announcement(4, bundle(4).described.digest, adopted_at, None, adopted_at + 500)
    proxy.published.announce("proxy-1", said)
    assert proxy.published.announcements() == {"proxy-1": said}


def test_error_of_any_kind_is_shown_and_does_not_end_the_thread(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = threading.Semaphore(0)

    def fail(_: PublishedPolicies) -> None:
        steps.release()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(proxy.adoption, "step", fail)
    connection = SimpleNamespace(ask=proxy.server.ask, close=lambda: None)
    monkeypatch.setattr(policy_follower, "connect", lambda *_: connection)
    monkeypatch.setattr(policy_follower, "LOOK_SECONDS", 0.01)
    follower = policy_follower.PolicyFollower(proxy.adoption, proxy.config.fleet)
    follower.start()
    try:
        assert all(steps.acquire(timeout=10.0) for _ in range(2))
        assert proxy.adoption.status()["away"] == "RuntimeError: can't start new thread"
    finally:
        follower.stop()
        follower.join()


def test_news_are_told_at_once_and_the_rest_now_and_then() -> None:
    said = Announcement(4, "a", 1.0, None, 100.0)
    assert not is_news(said, replace(said, said_at=100.0 + ANNOUNCE_SECONDS / 2))
    assert is_news(said, replace(said, said_at=100.0 + ANNOUNCE_SECONDS))
    assert is_news(said, replace(said, said_at=99.0))
    assert is_news(said, replace(said, problem="x"))
    assert is_news(said, replace(said, number=5))


def test_check_config_says_that_local_files_have_no_effect(proxy: Proxy, capsys: pytest.CaptureFixture[str]) -> None:
    proxy.publish(bundle(4))
    proxy.step()
    assert main(["--config", str(proxy.path), "check-config"]) == 0
    digest = bundle(4).described.digest[:12]
    note = f"networks and devices are those of policy 4 ({digest}) of fleet europe, no local ones\n"
    assert note in capsys.readouterr().out


def test_check_config_and_reload_say_that_a_policy_is_damaged(proxy: Proxy, capsys: pytest.CaptureFixture[str]) -> None:
    adopted(proxy, 4)
    DAMAGES["no yaml"].do(proxy, 4)
    proxy.start()
    assert main(["--config", str(proxy.path), "check-config"]) == 0
    assert f"{proxy.config.policy_problem}\n" in capsys.readouterr().out
    assert notes_of(proxy.config, proxy.clock.time()) == [proxy.config.policy_problem]
