"""docs/reference/json.md describes each key of what `--json` prints and the services answer, and no other key."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from inspect import signature
from io import StringIO
from pathlib import Path
from typing import Final

import pytest
from examples import connection, ends, subflow
from loops import LoopOnModels
from setup_facts import HOST
from worlds import configuration

from mptcp_lab.watched_page import write_config
from mptcp_sniffer.sniffer import Sniffer
from mptcp_throttle.cli import doctor, main, parser, setup_commands
from mptcp_throttle.cli.doctor import service_checks
from mptcp_throttle.config.schema import Sockets
from mptcp_throttle.features import FeatureName
from mptcp_throttle.rpc import Json, RpcServer
from mptcp_throttle.rpc.wire import encode_connection
from mptcp_throttled.accounting.accounts import NetworkAccounts
from mptcp_throttled.accounting.history import Account, History, Kind
from mptcp_throttled.answers.api import Api
from mptcp_throttled.answers.view import View
from mptcp_throttled.control.inbox import Inbox, Message
from mptcp_throttled.control.requests import Request, T
from mptcp_throttled.control.running_config import RunningConfig
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.vocabulary.clock import Clock, Now
from mptcp_throttled.vocabulary.counters import DiscardCounters, ProgramCounters, UplinkCounters
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
    "top": ["top"],
    "history": ["history", "wifi"],
    "plan": ["plan"],
    "doctor": ["doctor"],
    "check-config": ["check-config"],
    "set-rate": ["set-rate", "ethernet", "2mbit", "--for", "5m"],
    "reset-rate": ["reset-rate", "ethernet"],
    "pause": ["pause", "--for", "5m"],
    "resume": ["resume"],
    "reload": ["reload"],
    "setup": ["setup", "--dry-run"],
    "setup networks": ["setup", "networks", "--for", "1ms"],
}
"""Each command with `--json`, by the name of its document."""


def described_keys() -> dict[str, list[str]]:
    """The keys that each heading of the reference describes."""
    keys = {}
    for section in re.split(r"^##+ ", REFERENCE, flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        _, _, table = text.partition("| key | type | meaning |\n")
        keys[heading] = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    return {heading: names for heading, names in keys.items() if names}


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
    accounts = {"wifi": NetworkAccounts(Traffic(sent=1))}
    return View(running.loop.snapshot, enforcement, accounts, Now.of(running.clock))


def api_on_models(directory: Path) -> Api:
    running = LoopOnModels(directory)
    running.show(*CONNECTIONS)
    history, now = History(directory / "history.sqlite", "boot"), Clock().time()
    history.add(now, [(Account(Kind.NETWORK, "wifi"), Traffic(sent=1))])
    history.flush(now, 0.0, {})
    config, recent = RunningConfig(configuration(), now), running.loop.recent_decisions
    return Api(config, DirectInbox(running), lambda: view_of(running), history, recent, configuration)


@contextmanager
def serving(directory: Path, api: Api) -> Iterator[str]:
    """Both services; the configuration file that says where they are."""
    config, sockets = write_config(directory, {}), Sockets.below(directory / "run")
    for socket in (sockets.daemon, sockets.sniffer):
        socket.parent.mkdir(parents=True)
    position = {"epoch": "a", "revision": 1}
    known = [encode_connection(each) for each in CONNECTIONS]
    table: dict[str, Callable[..., Json]] = {
        "status": Sniffer(configuration(), lambda: None).status,
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


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Json]:
    """What each command prints; and the answer to `decisions`, which no command prints."""
    directory = tmp_path_factory.mktemp("services")
    api = api_on_models(directory)
    printed: dict[str, Json] = {"decisions": {"format": 1, **api.decisions(10)}}
    with pytest.MonkeyPatch.context() as patch, serving(directory, api) as config:
        patch.setattr(doctor, "CHECKS", (service_checks.sniffer, service_checks.daemon))
        patch.setattr(setup_commands, "_CHECKS", ())
        patch.setattr(setup_commands, "require_capabilities", lambda **_: None)
        patch.setattr(setup_commands, "collect_facts", lambda: HOST)
        for name, arguments in COMMANDS.items():
            with redirect_stdout(StringIO()) as output:
                main(["--config", config, *arguments, "--json"])
            printed[name] = json.loads(output.getvalue())
    return printed


Described = tuple[str, Json]
"""The headings that describe an object, separated by ` + `; and the object."""


def of_network(network: Json) -> Iterator[Described]:
    yield "client_prefix", network["client_prefix"]
    yield "traffic", network["totals"]
    yield from of_rates(network)


def of_rates(network: Json) -> Iterator[Described]:
    yield "rates", network["rates"]
    for direction in network["rates"].values():
        yield "direction", direction
        yield from (("rate", rate) for rate in direction.values())


def of_subflow(described: Json) -> Iterator[Described]:
    yield from ((direction, described[direction]) for direction in ("downlink", "uplink"))


def of_status(status: Json) -> Iterator[Described]:
    daemon, capture = status["daemon"], status["capture"]
    yield from (("daemon", daemon), ("config", daemon["config"]), ("features", daemon["features"]))
    yield from (("feature", feature) for feature in daemon["features"].values())
    yield from (("sniffer", status["sniffer"]), ("capture", capture), ("kernel_view", capture["kernel_view"]))
    for network in status["networks"]:
        yield "network", network
        yield from of_network(network)


def of_top(top: Json) -> Iterator[Described]:
    *networks, without_network = top["networks"]
    assert without_network["name"] is None
    assert without_network.keys() == {"name", "sent_bps", "received_bps", "rates", "per", "clients", "more_clients"}
    yield from of_rates(without_network)
    for network in networks:
        yield "network + network with clients", network
        yield from of_network(network)
    for client in (client for network in top["networks"] for client in network["clients"]):
        yield "client", client
        for each in client["subflows"]:
            yield "subflow + subflow with its state", each
            yield from of_subflow(each)


def of_counters() -> Iterator[Described]:
    """The models count nothing, and the sniffer's counters begin to exist when something is counted."""
    yield "counters of pacing", asdict(ProgramCounters())
    yield "counters of uplinks", asdict(UplinkCounters())
    yield "counters of discards", asdict(DiscardCounters())
    sources = (path.read_text(encoding="utf-8") for path in (REPOSITORY / "sniffer/mptcp_sniffer").glob("*.py"))
    yield "counters of the sniffer", dict.fromkeys(re.findall(r'counters\["(\w+)"\]', "\n".join(sources)), 0)


def objects(documents: Mapping[str, Json]) -> Iterator[Described]:
    """All objects in the documents."""
    for name, document in documents.items():
        described = {key: value for key, value in document.items() if key != "format"}
        yield {"set-rate": "network", "reset-rate": "network"}.get(name, name), described
    yield from of_counters()
    yield from of_status(documents["status"])
    yield from of_network(documents["set-rate"])
    yield from of_top(documents["top"])
    yield "end", documents["pause"]["pause"]
    for each in documents["connections"]["connections"]:
        yield "connection", each
        for described in each["subflows"]:
            yield "subflow", described
            yield from of_subflow(described)
    yield from (("traffic + period", period) for period in documents["history"]["periods"])
    yield from (("decision", decision) for decision in documents["decisions"]["decisions"])
    yield from (("operation", operation) for operation in documents["plan"]["operations"])
    yield from (("finding", finding) for finding in documents["doctor"]["findings"])
    yield from (("value", value) for value in documents["setup"]["values"])
    yield from (("file", file) for file in documents["setup"]["files"])
    for network in documents["setup networks"]["networks"]:
        yield "proposed network", network
        yield from (("seen subnet", seen) for seen in network["subnets"])


def test_each_object_has_the_keys_that_are_described(documents: Mapping[str, Json]) -> None:
    seen = set()
    for headings, described in objects(documents):
        keys = [key for heading in headings.split(" + ") for key in KEYS[heading]]
        assert sorted(described) == sorted(keys), headings
        seen.update(headings.split(" + "))
    assert seen == KEYS.keys()


def test_each_document_has_its_format(documents: Mapping[str, Json]) -> None:
    assert [document["format"] for document in documents.values()] == [1] * len(documents)


def test_each_command_has_its_document() -> None:
    (commands,) = (action.choices for action in parser()._actions if action.dest == "command")
    assert commands is not None
    assert {*commands} == {name for name in COMMANDS if " " not in name}


def test_features_are_described() -> None:
    assert sorted(KEYS["features"]) == sorted(FeatureName)


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
    sniffer = Sniffer(configuration(), lambda: None)
    assert described_methods("sniffer.sock") == parameters(sniffer.methods())
