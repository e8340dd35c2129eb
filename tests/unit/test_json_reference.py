"""docs/reference/json.md describes each key of what `--json` prints and the services answer, and no other key."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout
from dataclasses import asdict, replace
from functools import partial
from inspect import signature
from io import StringIO
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

import pytest
import yaml
from examples import ETHERNET, WIFI, connection, ends, subflow
from loops import LoopOnModels
from policy_server import PolicyServer
from setup_facts import HOST
from worlds import configuration

from mptcp_lab.watched_page import write_config
from mptcp_sniffer.sniffer import Sniffer
from mptcp_sniffer.stop import Stop
from mptcp_throttle.cli import doctor, fleet_commands, main, parser, setup_commands
from mptcp_throttle.cli.doctor import service_checks
from mptcp_throttle.config.schema import Sockets
from mptcp_throttle.features import FeatureName
from mptcp_throttle.model import Ailment, Budget, Counting, Every, Health, Per, RateKind, Stage, Token, Window
from mptcp_throttle.policy_bundle.bundle import PolicyVersion
from mptcp_throttle.policy_bundle.published import Announcement, PublishedPolicies
from mptcp_throttle.policy_bundle.signature import PrivateKey
from mptcp_throttle.rpc import Json, RpcServer
from mptcp_throttle.rpc.wire import encode_connection
from mptcp_throttle.units import Rate
from mptcp_throttle.when import When
from mptcp_throttled.accounting.accounts import Accounts, NetworkAccounts
from mptcp_throttled.accounting.control_group import ComparedGroups, DaySums, GroupSums
from mptcp_throttled.accounting.history import History
from mptcp_throttled.accounting.history_rows import Account, Kind
from mptcp_throttled.accounting.ledger import Ledger
from mptcp_throttled.answers.api import Api
from mptcp_throttled.answers.view import View
from mptcp_throttled.control.inbox import Inbox, Message
from mptcp_throttled.control.overflow_simulation import simulate
from mptcp_throttled.control.requests import Request, T
from mptcp_throttled.control.running_config import RunningConfig
from mptcp_throttled.control.trace import Row
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.vocabulary.clock import Clock, Now
from mptcp_throttled.vocabulary.control_group import EndedConnection
from mptcp_throttled.vocabulary.counters import DiscardCounters, ProgramCounters, SteeringCounters, UplinkCounters
from mptcp_throttled.vocabulary.fleet import FleetState, KnownProxy, LeaseState, Load
from mptcp_throttled.vocabulary.traffic import Traffic

REPOSITORY: Final = Path(__file__).parents[2]
REFERENCE: Final = (REPOSITORY / "docs/reference/json.md").read_text(encoding="utf-8")
CONNECTIONS: Final = (
    connection(1, subflow("10.1.0.1"), subflow("10.2.0.1")),
    connection(2, subflow("10.9.0.1")),  # in no access network
)
COMMANDS: Final = {
    "status": ["status"],
    "connections": ["connections"],
    "budget add": ["budget", "add", "10.1.0.1", "1GB", "--until", "2030-01-01"],
    "budget set-used": ["budget", "set-used", "10.1.0.1", "5GB"],
    "explain": ["explain", "10.1.0.1"],
    "top": ["top"],
    "events": ["events"],
    "history": ["history", "wifi"],
    "budgets": ["budgets"],
    "budget reset": ["budget", "reset", "ethernet"],
    "plan": ["plan"],
    "doctor": ["doctor"],
    "check-config": ["check-config"],
    "set-rate": ["set-rate", "ethernet", "2mbit", "--for", "5m"],
    "reset-rate": ["reset-rate", "ethernet"],
    "set-rate --client": ["set-rate", "--client", "10.1.0.1", "ethernet", "2mbit"],
    "reset-rate --client": ["reset-rate", "--client", "10.1.0.1", "ethernet"],
    "pause": ["pause", "--for", "5m"],
    "resume": ["resume"],
    "reload": ["reload"],
    "fleet new-key": ["fleet", "new-key", "NEW"],
    "fleet publish": ["fleet", "publish", "--key", "KEY", "--number", "2"],
    "fleet status": ["fleet", "status"],
    "fleet forget": ["fleet", "forget", "proxy-1"],
    "setup": ["setup", "--dry-run"],
    "setup networks": ["setup", "networks", "--for", "1ms"],
}
"""Each command with `--json`, by the name of its document."""

BUDGET: Final = Budget(
    10**9, Per.CLIENT, Counting.BOTH, Every.MONTH, 1, 0.8, (Stage(1.0, {RateKind.CAP: Rate.parse("256kbit")}),)
)
TODAY: Final = "2023-11-14"
"""The day of the models' clock."""
AUTUMN: Final = 1792796400.0
"""In the week in which clocks change, of 2026."""
SCHEDULE: Final = (Window(When.parse("01:00-06:00"), {}, counts=False),)
NETWORKS: Final = (WIFI, replace(ETHERNET, budgets=(BUDGET,), healthy=Health(loss=0.05), schedule=SCHEDULE))


def described_keys() -> dict[str, dict[str, str]]:
    """Below each heading of the reference, the type of each key, such as `daemon`, `config.problems` or `files[].path`.

    Keys that share a row share its type, or have a type each.
    """
    described: dict[str, dict[str, str]] = {}
    for section in re.split(r"^##+ ", REFERENCE, flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        for head, rows in re.findall(r"^\| key \|( type \|)? meaning \|\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE):
            for row in rows.splitlines():
                cells = row.split(" | ")
                names, types = re.findall(r"`([^`]+)`", cells[0]), cells[1].split(", ") if head else ["integer"]
                of_each = zip(names, types if len(types) > 1 else types * len(names), strict=True)
                for name, its_type in of_each:
                    assert name not in described.setdefault(heading, {})
                    described[heading][name] = its_type
    return described


KEYS: Final = described_keys()


class DirectInbox(Inbox):
    """Carries out requests in the thread of the caller."""

    def __init__(self, running: LoopOnModels) -> None:
        super().__init__()
        self._running = running

    def ask(self, request: Request[T]) -> T:
        message = Message(request)
        self._running.loop.step([message])
        return message.answered.result(0)


def view_of(running: LoopOnModels) -> View:
    """The snapshot of a loop, and what was observed."""
    enforcement = Enforcement(rates={ends("10.1.0.1"): 125_000.0})
    accounts, groups = {"wifi": NetworkAccounts(Traffic(sent=1))}, compared_groups()
    by_day = {TODAY: DaySums(*groups[1:])}
    now = Now.of(running.clock)
    proxies = {"proxy-1": KnownProxy(now.monotonic, now.monotonic, "1.0.0", Load(8, 8, 1, 1))}
    fleet = FleetState("proxy-1", "valkey:6379", "OOM", now.monotonic, proxies, 1, "has a bad total", "is no hash")
    return View(
        running.loop.snapshot, enforcement, accounts, now, groups, by_day=by_day, fleet=fleet, leases=LeaseState()
    )


def compared_groups() -> ComparedGroups:
    """Large enough for all differences."""
    group = GroupSums()
    for megabytes in range(1, 40):
        sent = megabytes * 1_000_000
        group = group.plus(EndedConnection(Token(1), is_control=False, seconds=1.0, sent=sent, sent_with_cap=sent // 2))
    return ComparedGroups(0.01, group, group)


def api_on_models(directory: Path) -> Api:
    running = LoopOnModels(directory, NETWORKS)
    running.kernel.sick[ends("10.1.0.1")] = Ailment.LOSS
    running.show(*CONNECTIONS)
    history, now = History(directory / "history.sqlite", "boot"), Clock().time()
    history.add(now, [(Account(Kind.NETWORK, "wifi"), Traffic(sent=1))])
    history.add(now, [(Account(Kind.CLIENT, "10.1.0.1"), Traffic(sent=1, held_back_ms=5))])
    history.flush(now, 0.0, {})
    accounts = Accounts(history, Ledger({}, lambda: True, is_shared=True), Clock())
    accounts.observe({}, running.loop.snapshot, {})
    zoned = replace(configuration(NETWORKS), time_zone=ZoneInfo("Europe/Berlin"))
    config, reports = RunningConfig(zoned, now), (running.loop.recent_decisions, running.loop.events)
    inbox, load = DirectInbox(running), partial(configuration, NETWORKS)
    return Api(config, inbox, lambda: view_of(running), history, accounts, *reports, load)


@contextmanager
def serving(directory: Path, api: Api) -> Iterator[str]:
    """Both services; the configuration file that says where they are."""
    config, sockets = write_config(directory, {}), Sockets.below(directory / "run")
    for socket in (sockets.daemon, sockets.sniffer):
        socket.parent.mkdir(parents=True)
    position = {"epoch": "a", "revision": 1}
    known = [encode_connection(each) for each in CONNECTIONS]
    table: dict[str, Callable[..., Json]] = {
        "status": Sniffer(configuration(), lambda: None, Stop()).status,
        "snapshot": lambda *_: {**position, "connections": known, "next": None},
        "changes": lambda *_: {**position, "changes": [], "more": False},
        "reload": lambda: {"problems": [], "valid": True},
    }
    servers = [RpcServer(sockets.daemon, api.methods(), None), RpcServer(sockets.sniffer, table, None)]
    try:
        yield str(config)
    finally:
        for server in servers:
            server.close()


def published_on_a_model() -> PublishedPolicies:
    """A server with a proxy, and a policy that nobody has signed."""
    published = PublishedPolicies(PolicyServer().ask, "europe")
    published.add(1, b"")
    published.announce("proxy-1", Announcement(1, "ab12", 1.79e9, "x", 1.79e9))
    return published


def add_fleet(config: Path, key_file: Path) -> None:
    """A fleet in the configuration, for which the new key may publish."""
    key = PrivateKey.new()
    key.write(key_file)
    section = {"url": "valkey://localhost", "name": "office", "share_clients": True}
    policy = {"fleet": "europe", "keys": [str(key.public)]}
    document = {**yaml.safe_load(config.read_text(encoding="utf-8")), "fleet": {**section, "policy": policy}}
    config.write_text(yaml.safe_dump(document), encoding="utf-8")


def unprinted(api: Api) -> dict[str, Json]:
    """The answers to requests that no command makes."""
    api.set_rate("ethernet", "uplink", "limit", "2mbit", 60.0)
    overrides = api.overrides("ethernet")
    api.reset_rate("ethernet")
    return {
        "overrides": overrides,
        "decisions": api.decisions(10),
        "clients": api.clients(10),
        "client details": api.client("10.1.0.1"),
        "week": api.week(AUTUMN),
        "savings": api.savings(),
        "waiting": api.waiting(),
    }


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Json]:
    """What each command prints, and answers that no command prints."""
    directory = tmp_path_factory.mktemp("services")
    api = api_on_models(directory)
    policy = PolicyVersion(7, "ab12", 1_790_000_000, "alice")
    api.policy = lambda: {
        "fleet": "europe",
        "in_use": {**asdict(policy), "adopted_at": 1.79e9},
        "problem": "x",
        "away": "y",
    }
    server = published_on_a_model()
    files = {"NEW": str(directory / "new.key"), "KEY": str(directory / "policy.key")}
    printed = {name: {"format": 1, **answer} for name, answer in unprinted(api).items()}
    with pytest.MonkeyPatch.context() as patch, serving(directory, api) as config:
        patch.setattr(doctor, "CHECKS", (service_checks.sniffer, service_checks.daemon))
        patch.setattr(setup_commands, "_CHECKS", ())
        patch.setattr(setup_commands, "require_capabilities", lambda **_: None)
        patch.setattr(setup_commands, "collect_facts", lambda: HOST)
        patch.setattr(fleet_commands, "_published", lambda *_, **__: nullcontext(server))
        add_fleet(Path(config), Path(files["KEY"]))
        for name, arguments in COMMANDS.items():
            with redirect_stdout(StringIO()) as output:
                main(["--config", config, *(files.get(each, each) for each in arguments), "--json"])
            printed[name] = json.loads(output.getvalue().splitlines()[0] if name == "events" else output.getvalue())
    return printed


def is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_integer(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_list_of(kind: type) -> Callable[[Json], bool]:
    return lambda value: isinstance(value, list) and {type(each) for each in value} <= {kind}


TYPES: Final[Mapping[str, Callable[[Json], bool]]] = {
    "boolean": lambda value: isinstance(value, bool),
    "integer": is_integer,
    "integers": is_list_of(int),
    "lines": is_list_of(str),
    "null": lambda value: value is None,
    "number": is_number,
    "rate": lambda value: isinstance(value, str),
    "seconds": is_number,
    "string": lambda value: isinstance(value, str),
    "strings": is_list_of(str),
    "time": is_number,
}


class Comparison:
    """Compares objects with the rows of the reference; `seen` are the headings with the keys that were compared."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, str]] = set()

    def of_object(self, found: Json, *described_by: tuple[str, str]) -> None:
        """An object that has the keys below these headings, each with what begins the names of its keys there."""
        expected: dict[str, tuple[str, str]] = {}
        for heading, beginning in described_by:
            for path in KEYS[heading]:
                if path.startswith(beginning) and (key := re.match(r"\w+", path[len(beginning) :])):
                    expected[key[0]] = (heading, beginning + key[0])
        assert sorted(found) == sorted(expected), described_by
        for name, (heading, path) in expected.items():
            if any(other.startswith(f"{path}[]") for other in KEYS[heading]):
                assert isinstance(found[name], list)
                for each in found[name]:
                    self._of_value(each, heading, f"{path}[]")
            else:
                self._of_value(found[name], heading, path)

    def _of_value(self, found: Json, heading: str, path: str) -> None:
        its_type = KEYS[heading].get(path)
        if its_type is not None:
            self.seen.add((heading, path))
            if its_type.endswith("?") and found is None:
                return
        linked = re.match(r"\[.*\]\(#(.*)\)", its_type or "")
        described_by = [(linked[1].replace("-", " "), "")] if linked else []
        if any(other.startswith(f"{path}.") for other in KEYS[heading]):
            described_by.append((heading, f"{path}."))
        if path.endswith("counters") and found == {}:
            return
        if described_by:
            self.of_object(found, *described_by)
        else:
            assert its_type is not None
            assert TYPES[its_type.removesuffix("?")](found), (heading, path, found)


def of_counters(comparison: Comparison) -> None:
    """The models count nothing, and the sniffer's counters begin to exist when something is counted."""
    counters = {
        "steering": asdict(SteeringCounters()),
        "pacing": asdict(ProgramCounters()),
        "uplinks": asdict(UplinkCounters()),
        "discards": asdict(DiscardCounters()),
    }
    features = {name: {"problem": None, "switched_off": None, "counters": each} for name, each in counters.items()}
    comparison.of_object(features, ("features", ""))
    sources = (path.read_text(encoding="utf-8") for path in (REPOSITORY / "sniffer/mptcp_sniffer").glob("*.py"))
    of_sniffer = re.findall(r'counters\["(\w+)"\]', "\n".join(sources))
    comparison.of_object(dict.fromkeys(of_sniffer, 0), ("counters of the sniffer", ""))


def of_simulation(comparison: Comparison) -> None:
    """A program of its own answers, so that it is not among the commands."""
    client, networks = ip_address("10.1.0.1"), (WIFI, replace(ETHERNET, overflow=Rate(10_000_000)))
    rates = {"wifi": 3e6, "ethernet": 1e6}
    rows = [Row(at, client, name, rate, None) for at in range(1, 9) for name, rate in rates.items()]
    document = simulate(configuration(networks), rows)
    assert document["clients"][0]["changes"]
    comparison.of_object(document, ("check-config --simulate", ""))


def with_complete_networks(top: Json) -> Json:
    """The document with the keys that the last network, which has no name, does not have."""
    *networks, without_name = top["networks"]
    assert without_name.keys() == {"name", "sent_bps", "received_bps", "rates", "per", "clients", "more_clients"}
    assert (without_name["name"], without_name["per"]) == (None, None)
    return {**top, "networks": [*networks, {**networks[0], **without_name, "name": "", "per": ""}]}


def test_each_object_has_the_keys_and_types_that_are_described(documents: Mapping[str, Json]) -> None:
    comparison = Comparison()
    for name, document in documents.items():
        found = {key: value for key, value in document.items() if key != "format"}
        headings = {"set-rate": "network", "reset-rate": "network", "budget": "budgets"}
        heading = headings.get(name.split(" ")[0], name)
        comparison.of_object(with_complete_networks(found) if name == "top" else found, (heading, ""))
    of_counters(comparison)
    of_simulation(comparison)
    assert comparison.seen == {(heading, path) for heading, paths in KEYS.items() for path in paths}


def test_each_document_has_its_format(documents: Mapping[str, Json]) -> None:
    assert [document["format"] for document in documents.values()] == [1] * len(documents)


def test_each_command_has_its_document() -> None:
    (commands,) = (action.choices for action in parser()._actions if action.dest == "command")
    assert commands is not None
    assert {*commands} == {name.split(" ")[0] for name in COMMANDS}


def test_features_are_described() -> None:
    assert {path.partition(".")[0] for path in KEYS["features"]} == {*FeatureName}


def described_methods(socket: str) -> dict[str, list[str]]:
    """The methods of a socket in the table, with the names of their parameters."""
    _, _, table = REFERENCE.partition(f"| `{socket}` | parameters | answer |\n")
    rows = re.findall(r"^\| `(\w+)` \| ?(.*?) ?\|", table.partition("\n\n")[0], re.MULTILINE)
    return {name: re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", named)) for name, named in rows}


def parameters(methods: Mapping[str, Callable[..., Json]]) -> dict[str, list[str]]:
    """The methods with the names of their parameters."""
    return {name: list(signature(method).parameters) for name, method in methods.items()}


def test_each_method_of_the_daemon_is_in_the_table(tmp_path: Path) -> None:
    assert described_methods("daemon.sock") == parameters(api_on_models(tmp_path).methods())


def test_each_method_of_the_sniffer_is_in_the_table() -> None:
    sniffer = Sniffer(configuration(), lambda: None, Stop())
    assert described_methods("sniffer.sock") == parameters(sniffer.methods())
