"""The exchange of totals between proxies, with a model of the server, and without time."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address

import pytest
from model_ledger import KEY, PERIOD, ModelLedger

from mptcp_throttle.periods import Period
from mptcp_throttled.fleet.exchange import ExchangeError, ReadReports, Totals, WriteRefused
from mptcp_throttled.fleet.keys import MAX_FIELDS, PROXIES, field_of, name_of
from mptcp_throttled.fleet.refusals import Refusals
from mptcp_throttled.fleet.reports import LEFT_SECONDS, Report
from mptcp_throttled.fleet.totals_book import FAR_ROUNDS, ROUND_TICKS, TotalsBook
from mptcp_throttled.fleet.totals_thread import TICK_SECONDS, Identity, TotalsThread
from mptcp_throttled.vocabulary.events import Event, EventKind
from mptcp_throttled.vocabulary.fleet import GONE_SECONDS, LATE_SECONDS, Load, OwnTotal, Presence

LINK = 1e9


@dataclass
class Server:
    """Hashes, which a test may change; `problem` and `refusal` are what it says to everything, and to writes.

    The answer about the hash `too_long` is that. `bad_reports` are what it says of reports that are none, and
    `list_problem` of the list of proxies, of which only `known` can be read, if so.
    """

    hashes: dict[bytes, dict[str, int]] = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)
    problem: str | None = None
    refusal: str | None = None
    too_long: bytes | None = None
    bad_reports: tuple[str, ...] = ()
    list_problem: str | None = None
    known_can_be_read: bool = False
    writes: int = 0
    reads: int = 0


@dataclass
class ModelExchange:
    """A connection to the model of the server."""

    model: Server
    field: str
    server: str = "model:1"

    def publish(self, totals: Sequence[tuple[bytes, int]], keep: Mapping[bytes, int]) -> set[bytes]:
        self.check()
        if self.model.refusal is not None:
            raise WriteRefused(self.model.refusal)
        assert all(seconds > 0 for seconds in keep.values())
        added = set()
        for name, total in totals:
            by_field = self.model.hashes.setdefault(name, {})
            if self.field not in by_field:
                added.add(name)
            by_field[self.field] = total
            self.model.writes += 1
        return added

    def read(self, names: Sequence[bytes]) -> Sequence[bytes]:
        self.check()
        if self.model.too_long in names:
            raise ExchangeError("the server's answer is too long", self.model.too_long)
        self.model.reads += len(names)
        return [repr(self.model.hashes.get(name, {})).encode() for name in names]

    def oversized(self, names: Sequence[bytes], contents: Sequence[bytes]) -> Sequence[bytes]:
        hashes = zip(names, contents, strict=True)
        return [name for name, content in hashes if len(eval(content)) > MAX_FIELDS]  # noqa: S307

    def read_fields(self, asked: Sequence[tuple[bytes, tuple[str, ...]]]) -> Sequence[bytes]:
        self.check()
        self.model.reads += len(asked)
        hashes = [(self.model.hashes.get(name, {}), fields) for name, fields in asked]
        return [repr({each: hashed[each] for each in fields if each in hashed}).encode() for hashed, fields in hashes]

    def without_own_totals(self, contents: Sequence[bytes], published: Sequence[int]) -> Sequence[bytes | None]:
        return [self.without_own(content, own) for content, own in zip(contents, published, strict=True)]

    def without_own(self, content: bytes, own: int) -> bytes | None:
        by_field = eval(content)  # noqa: S307
        return repr(by_field).encode() if by_field.pop(self.field, None) == own else None

    def totals(self, content: bytes) -> Totals:
        return Totals(eval(content))  # noqa: S307

    def report(self, report: Report, keep: int) -> bool:
        self.check()
        if self.model.refusal is not None:
            raise WriteRefused(self.model.refusal)
        assert keep > 0
        is_new = self.field not in self.model.reports
        self.model.reports[self.field] = report
        return is_new

    def reports(self) -> ReadReports:
        self.check()
        if self.model.too_long == PROXIES:
            raise ExchangeError("the server's answer is too long", PROXIES)
        if self.model.list_problem is not None:
            return ReadReports({}, problem=self.model.list_problem)
        return ReadReports(dict(self.model.reports), self.model.bad_reports)

    def reports_of(self, fields: tuple[str, ...]) -> ReadReports:
        self.check()
        if not self.model.known_can_be_read:
            return ReadReports({}, problem=self.model.list_problem or "is no hash")
        return ReadReports({each: self.model.reports[each] for each in fields if each in self.model.reports})

    def forget(self, fields: Sequence[str]) -> None:
        if self.model.refusal is not None:
            raise WriteRefused(self.model.refusal)
        self.check()
        for each in fields:
            self.model.reports.pop(each, None)

    def close(self) -> None:
        pass

    def check(self) -> None:
        if self.model.problem is not None:
            raise ExchangeError(self.model.problem)


class Proxy:
    """A proxy whose thread is stepped by the test."""

    def __init__(self, model: Server, name: str, ledger: str = "00000000") -> None:
        self.ledger = ModelLedger()
        self.field = field_of(name, ledger)
        self.now = 1000.0
        identify = lambda: Identity(self.field, None)  # noqa: E731
        self.connect: Callable[[ModelExchange], ModelExchange] = lambda exchange: exchange

        def connect(own: str, _: int) -> ModelExchange:
            exchange = ModelExchange(model, own)
            exchange.check()
            return self.connect(exchange)

        self.events: list[Event] = []
        self.thread = TotalsThread(name, LINK, self.ledger, identify, connect, Refusals(), self.events.append)

    def run(self, seconds: float) -> None:
        for _ in range(int(seconds / TICK_SECONDS)):
            self.now += TICK_SECONDS
            try:
                self.thread.step(self.now)
            except ExchangeError as error:
                self.thread._note_failure(error)


def run_all(proxies: Sequence[Proxy], seconds: float) -> None:
    for _ in range(int(seconds / TICK_SECONDS)):
        for proxy in proxies:
            proxy.run(TICK_SECONDS)


CLIENT = "192.0.2.1"
HASH = name_of(OwnTotal(KEY, ip_address(CLIENT), PERIOD, 0, 0.0), None)


@pytest.fixture
def model() -> Server:
    return Server()


@pytest.fixture
def proxies(model: Server) -> list[Proxy]:
    made = [Proxy(model, f"proxy-{number}") for number in range(3)]
    for number, proxy in enumerate(made):
        proxy.ledger.carry(CLIENT, 100 * 10**number)
    run_all(made, 3.0)
    return made


def elsewhere(proxies: Sequence[Proxy]) -> list[int]:
    return [proxy.ledger.used_elsewhere(CLIENT) for proxy in proxies]


def test_each_proxy_knows_what_was_used_at_the_others(proxies: list[Proxy]) -> None:
    assert elsewhere(proxies) == [11_000, 10_100, 1_100]
    assert all(set(proxy.thread.state.proxies) == {"proxy-0", "proxy-1", "proxy-2"} for proxy in proxies)


def test_each_proxy_knows_the_part_of_each_other(model: Server, proxies: list[Proxy]) -> None:
    used = [dict(proxy.ledger.elsewhere[ip_address(CLIENT)].elsewhere.by_field) for proxy in proxies]
    assert used[0] == {proxies[1].field: 1_000, proxies[2].field: 10_000}
    assert used[2] == {proxies[0].field: 100, proxies[1].field: 1_000}
    # Of two ledgers of a proxy, both count.
    again = Proxy(model, "proxy-1", "00000001")
    again.ledger.carry(CLIENT, 7)
    run_all([again, *proxies], 3.0)
    used = [dict(proxies[0].ledger.elsewhere[ip_address(CLIENT)].elsewhere.by_field)]
    assert (used[0][proxies[1].field], used[0][again.field]) == (1_000, 7)


def presences(proxy: Proxy) -> dict[str, Presence]:
    state = proxy.thread.state
    return {name: known.presence for name, known in state.proxies.items()}


def test_each_proxy_knows_who_is_in_reach_and_what_it_carries(model: Server, proxies: list[Proxy]) -> None:
    proxies[2].thread._load = lambda: Load(sent_bps=8_000_000)
    run_all(proxies, 4.0)
    state = proxies[0].thread.state
    assert state.proxies["proxy-2"].load == Load(sent_bps=8_000_000)
    assert state.proxies["proxy-2"].version
    run_all(proxies[:2], LATE_SECONDS + 3.0)
    assert presences(proxies[0]) == {
        "proxy-0": Presence.REACHABLE,
        "proxy-1": Presence.REACHABLE,
        "proxy-2": Presence.LATE,
    }
    # While the server is away, nothing new is known of anybody.
    model.problem = "is away"
    run_all(proxies[:2], 2 * LATE_SECONDS)
    assert presences(proxies[0])["proxy-1"] is Presence.REACHABLE


def test_bad_report_is_refused_and_hides_no_proxy(model: Server, proxies: list[Proxy]) -> None:
    del model.reports[proxies[1].field]
    model.bad_reports = (f"has 'x' as the report of {proxies[1].field}",)
    proxies[0].run(3.0)
    state = proxies[0].thread.state
    assert {*state.proxies} == {"proxy-0", "proxy-1", "proxy-2"}
    assert state.refusal == f"the list of proxies {model.bad_reports[0]}"


def test_list_that_cannot_be_read_leaves_states_as_they_were(model: Server, proxies: list[Proxy]) -> None:
    model.list_problem = "is no hash"
    run_all(proxies, GONE_SECONDS + 60.0)
    state = proxies[0].thread.state
    assert presences(proxies[0]) == dict.fromkeys(("proxy-0", "proxy-1", "proxy-2"), Presence.REACHABLE)
    assert (state.problem, state.list_problem) == (None, "is no hash")
    assert {int(proxies[0].now - known.looked) // 60 for known in state.proxies.values()} == {11}
    model.list_problem = None
    run_all(proxies[:2], 4.0)
    assert presences(proxies[0]) == {
        "proxy-0": Presence.REACHABLE,
        "proxy-1": Presence.REACHABLE,
        "proxy-2": Presence.REACHABLE,
    }
    run_all(proxies[:2], LATE_SECONDS)
    assert presences(proxies[0])["proxy-2"] is Presence.LATE
    assert proxies[0].thread.state.list_problem is None


def test_list_without_an_end_leaves_states_as_they_were(model: Server, proxies: list[Proxy]) -> None:
    model.too_long = PROXIES
    run_all(proxies, LATE_SECONDS + 5.0)
    assert {*presences(proxies[0]).values()} == {Presence.REACHABLE}
    assert proxies[0].thread.state.list_problem == "is too long, or no hash"


def test_known_proxies_are_looked_for_in_a_list_that_is_oversized(model: Server, proxies: list[Proxy]) -> None:
    model.list_problem, model.known_can_be_read = "has too many fields", True
    run_all([*proxies[:2], Proxy(model, "proxy-9")], LATE_SECONDS + 4.0)
    assert presences(proxies[0]) == {
        "proxy-0": Presence.REACHABLE,
        "proxy-1": Presence.REACHABLE,
        "proxy-2": Presence.LATE,
    }
    assert proxies[0].thread.state.list_problem == "has too many fields"


def test_proxy_is_not_late_while_the_own_report_is_refused(model: Server, proxies: list[Proxy]) -> None:
    # A server that is full has no new report of anybody.
    model.refusal = "OOM"
    run_all(proxies, LATE_SECONDS + 4.0)
    assert {*presences(proxies[0]).values()} == {Presence.REACHABLE}


def test_others_are_seen_while_the_own_report_is_refused(model: Server, proxies: list[Proxy]) -> None:
    first, second, _ = proxies
    for _ in range(6):
        model.refusal = "NOPERM"
        first.run(2.0)
        model.refusal = None
        second.run(2.0)
    assert first.thread.state.problem == "NOPERM"
    assert presences(first)["proxy-1"] is Presence.REACHABLE
    assert presences(first)["proxy-2"] is Presence.LATE


def test_proxy_that_may_delete_no_report_goes_on(model: Server, proxies: list[Proxy]) -> None:
    first = proxies[0]
    left = field_of("proxy-9", "00000000")
    model.reports[left] = Report(1, int(time.time() - LEFT_SECONDS) - 1, "1.0.0", Load())
    first.run(GONE_SECONDS - 2.0)
    model.refusal = "NOPERM"
    first.run(6.0)
    assert left in model.reports
    assert (first.thread.state.problem, first.thread.state.server) == ("NOPERM", "model:1")
    assert first.events == []


@pytest.mark.parametrize("bad", [(), ("has 'x' as the report of proxy-8.00000000",)], ids=["whole", "one refused"])
def test_proxy_that_left_long_ago_is_deleted(model: Server, proxies: list[Proxy], bad: tuple[str, ...]) -> None:
    left = field_of("proxy-9", "00000000")
    model.bad_reports = bad
    model.reports[left] = Report(1, int(time.time() - LEFT_SECONDS) - 1, "1.0.0", Load())
    proxies[0].run(GONE_SECONDS - 2.0)
    assert presences(proxies[0])["proxy-9"] is Presence.GONE
    proxies[0].run(6.0)
    assert left not in model.reports
    proxies[0].run(3.0)
    assert "proxy-9" not in presences(proxies[0])


@pytest.mark.usefixtures("proxies")
def test_client_that_is_counted_while_the_server_is_connected_is_read(model: Server) -> None:
    again = Proxy(model, "proxy-3")

    def counting(exchange: ModelExchange) -> ModelExchange:
        again.ledger.carry(CLIENT, 5)
        return exchange

    again.connect = counting
    again.run(3.0)
    assert elsewhere([again]) == [11_100]


def test_server_that_was_away_changes_nothing_and_comes_back(model: Server, proxies: list[Proxy]) -> None:
    model.problem = "is away"
    run_all(proxies, 5.0)
    proxies[0].ledger.carry(CLIENT, 1)
    run_all(proxies, 5.0)
    assert elsewhere(proxies) == [11_000, 10_100, 1_100]
    state = proxies[0].thread.state
    assert (state.problem, state.server) == ("is away", None)
    assert state.exchanged_at == 1002.0
    model.problem = None
    run_all(proxies, 3.0)
    assert elsewhere(proxies) == [11_000, 10_101, 1_101]
    assert proxies[0].thread.state.problem is None


def test_server_that_goes_away_and_comes_back_is_an_event_once_each(model: Server, proxies: list[Proxy]) -> None:
    assert proxies[0].events == []
    for problem in ("is away", "is still away", "is away"):
        model.problem = problem
        run_all(proxies, 5.0)
    model.problem = None
    run_all(proxies, 5.0)
    assert [(event.kind, event.text) for event in proxies[0].events] == [
        (EventKind.FLEET_AWAY, "fleet: the totals of others stay as they were: is away"),
        (EventKind.FLEET_BACK, "fleet: totals are shared again by model:1"),
    ]


@pytest.mark.parametrize("is_noticed_by", ["writing", "reading", "an idle proxy"])
def test_wiped_server_refills_without_a_new_connection(model: Server, proxies: list[Proxy], is_noticed_by: str) -> None:
    if is_noticed_by == "an idle proxy":
        run_all(proxies, 60.0)
    before = dict(model.hashes[HASH])
    model.hashes.clear()
    model.reports.clear()
    if is_noticed_by == "writing":
        proxies[0].ledger.carry(CLIENT, 0)
    run_all(proxies, 4.0)
    assert model.hashes[HASH] == before
    assert elsewhere(proxies) == [11_000, 10_100, 1_100]


@dataclass
class WipedAfterTotals(ModelExchange):
    """The server loses all once it has the first totals by this connection."""

    is_wiped: bool = False

    def publish(self, totals: Sequence[tuple[bytes, int]], keep: Mapping[bytes, int]) -> set[bytes]:
        added = super().publish(totals, keep)
        if totals and not self.is_wiped:
            self.is_wiped = True
            self.model.hashes.clear()
            self.model.reports.clear()
        return added


def test_server_that_is_wiped_while_it_is_refilled_has_all_again(model: Server) -> None:
    proxy = Proxy(model, "proxy-0")
    proxy.ledger.carry(CLIENT, 100)
    proxy.run(60.0)
    proxy.connect = lambda exchange: WipedAfterTotals(exchange.model, exchange.field)
    model.problem = "is away"
    proxy.run(5.0)
    model.problem = None
    proxy.run(10.0)
    assert model.hashes[HASH] == {proxy.field: 100}


def test_client_back_after_a_wipe_has_used_as_much_as_before(model: Server, proxies: list[Proxy]) -> None:
    proxies[0].run(900.0)
    del model.hashes[HASH][proxies[2].field]
    proxies[0].ledger.carry(CLIENT, 1)
    proxies[0].run(3.0)
    assert elsewhere(proxies)[0] == 11_000


def test_what_was_believed_in_an_earlier_period_is_forgotten() -> None:
    book, later = TotalsBook(lambda total: name_of(total, None)), Period(PERIOD.end, PERIOD.end + 1)
    one, two = (OwnTotal(KEY, ip_address(address), PERIOD, 5, 0.0) for address in (CLIENT, "192.0.2.2"))
    book.note([one, two], 0.0)
    for entry in book.all_unpublished():
        entry.believe({"proxy-1.00000000": 7}, 0.0, 60.0, LINK)
    book.note_published(book.all_unpublished())
    book.forget_idle(1000.0)
    book.note([one, two._replace(period=later)], 1000.0)
    assert [len(entry.believed) for entry in book.all_unpublished()] == [1, 0]
    book.note_published(book.all_unpublished())
    book.forget_idle(1000.0)
    book.note([two], 1000.0)
    assert [len(entry.believed) for entry in book.all_unpublished()] == [0]


def test_server_that_takes_no_total_does_not_let_the_book_grow() -> None:
    book = TotalsBook(lambda total: name_of(total, None))
    for _ in range(3):
        book.note_lost([OwnTotal(KEY, ip_address(CLIENT), PERIOD, 5, 0.0)])
    assert [entry.total.used for entry in book.all_unpublished()] == [5]
    book.note_published(book.all_unpublished())
    assert book.all_unpublished() == []


def test_lost_ledger_begins_beside_what_it_has_published(model: Server, proxies: list[Proxy]) -> None:
    again = Proxy(model, "proxy-0", "00000001")
    again.ledger.carry(CLIENT, 7)
    run_all([again, *proxies[1:]], 3.0)
    assert elsewhere([again, *proxies[1:]]) == [11_100, 10_107, 1_107]


def test_total_of_this_proxy_is_not_read_back_and_written_again(model: Server, proxies: list[Proxy]) -> None:
    model.hashes[HASH][proxies[0].field] = 10**12
    run_all(proxies[:1], 5.0)
    assert elsewhere(proxies)[0] == 11_000
    assert model.hashes[HASH][proxies[0].field] == 100
    assert proxies[0].thread.state.refusal == f"{HASH.decode()} has a total of this proxy that is not from it"


def test_lie_is_believed_as_far_as_a_link_carries(model: Server, proxies: list[Proxy]) -> None:
    model.hashes[HASH][proxies[2].field] = 10**17
    run_all(proxies[:2], 3.0)
    assert 10_000 < elsewhere(proxies)[0] - 1_000 < 10 * LINK


@pytest.mark.parametrize("name", [HASH, PROXIES])
def test_hash_without_an_end_closes_one_connection_a_minute(model: Server, proxies: list[Proxy], name: bytes) -> None:
    (proxy, *_) = proxies
    connections: list[ModelExchange] = []

    def connecting(exchange: ModelExchange) -> ModelExchange:
        connections.append(exchange)
        return exchange

    proxy.connect = connecting
    model.too_long = name
    for _ in range(50):
        proxy.ledger.carry(CLIENT, 1)
        proxy.run(1.0)
    assert len(connections) == 1
    assert proxy.thread.state.problem is None
    assert proxy.now - (proxy.thread.state.exchanged_at or 0.0) <= ROUND_TICKS * TICK_SECONDS


def test_server_that_is_full_is_read(model: Server, proxies: list[Proxy], caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    model.refusal = "OOM"
    proxies[0].ledger.carry(CLIENT, 1)
    model.hashes[HASH][proxies[1].field] += 1
    for _ in range(3 * ROUND_TICKS):
        proxies[0].run(TICK_SECONDS)
        assert proxies[0].thread.state.problem in ("OOM", None)
    proxies[0].run(TICK_SECONDS)
    assert proxies[0].thread.state.problem == "OOM"
    assert len(caplog.records) == 1
    assert elsewhere(proxies)[0] == 11_001
    model.refusal = None
    proxies[0].run(3.0)
    assert proxies[0].thread.state.problem is None
    assert model.hashes[HASH][proxies[0].field] == 101


@pytest.mark.parametrize(
    ("seconds", "writes", "reads"),
    [
        (3600.0, 1, 1),
        (200.0, FAR_ROUNDS, FAR_ROUNDS // 2),
        (100.0, FAR_ROUNDS, FAR_ROUNDS),
        (1.0, FAR_ROUNDS * ROUND_TICKS, FAR_ROUNDS * ROUND_TICKS),
    ],
)
def test_client_is_read_the_more_often_the_nearer_it_is_to_a_stage(
    model: Server, proxies: list[Proxy], seconds: float, writes: int, reads: int
) -> None:
    (proxy, *_) = proxies
    for _ in range(2):
        model.writes = model.reads = 0
        for _ in range(FAR_ROUNDS * ROUND_TICKS):
            proxy.ledger.carry(CLIENT, 1, seconds)
            proxy.run(TICK_SECONDS)
    assert (model.writes, model.reads) == (writes, reads)


def test_idle_client_costs_nothing(model: Server, proxies: list[Proxy]) -> None:
    proxies[0].run(40.0)
    model.writes = model.reads = 0
    proxies[0].run(40.0)
    assert (model.writes, model.reads) == (0, 0)
