"""What `mptcp-throttle top` shows: the answer to `top` as a tree, and what keys change about it. Nothing here waits."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

from rich.console import Group
from rich.table import Table
from rich.text import Text

from mptcp_throttle.cli.fleet_tables import REACHABLE, STYLES, heard_of, state_of
from mptcp_throttle.cli.tables import shown_reason
from mptcp_throttle.devices import named
from mptcp_throttle.rpc import Json
from mptcp_throttle.rpc.wire import MAX_TOP_CLIENTS, Order

HELP: Final = "q quit  p pause  s sort  / filter  + - clients"
_BARS: Final = "▁▂▃▄▅▆▇█"
_SAMPLES: Final = 20
_WIDE: Final = 110
_PROXIES_SHOWN: Final = 5
_OF_PROXY: Final = "of a proxy"  # no name of a network
_STYLES: Final = {"cap": "yellow", "limit": "magenta", "backup": "dim", "free": ""}
_ENTER: Final = ("\r", "\n")
_ERASE: Final = ("\x7f", "\b")
_ESCAPE: Final = "\x1b"


@dataclass(frozen=True, slots=True)
class View:
    """What the user has chosen. `typed` is a filter that is being typed, None if none is."""

    order: Order = Order.SENT
    pattern: str = ""
    number: int = 10
    paused: bool = False
    typed: str | None = None
    ended: bool = False

    @property
    def question(self) -> tuple[int, str, str]:
        """What the daemon is asked for: the parameters of its method `top`."""
        return self.number, self.order, self.pattern

    def pressed(self, key: str) -> Self:
        """After a key."""
        if self.typed is not None:
            return self._typing(self.typed, key)
        match key:
            case "q" | "Q":
                return replace(self, ended=True)
            case "p" | " ":
                return replace(self, paused=not self.paused)
            case "s":
                orders = list(Order)
                return replace(self, order=orders[(orders.index(self.order) + 1) % len(orders)])
            case "/":
                return replace(self, typed="")
            case "+":
                return replace(self, number=min(self.number + 5, MAX_TOP_CLIENTS))
            case "-":
                return replace(self, number=max(self.number - 5, 5))
            case _ if key == _ESCAPE:
                return replace(self, pattern="")
        return self

    def _typing(self, typed: str, key: str) -> Self:
        if key in _ENTER:
            return replace(self, pattern=typed, typed=None)
        if key == _ESCAPE:
            return replace(self, typed=None)
        if key in _ERASE:
            return replace(self, typed=typed[:-1])
        return replace(self, typed=typed + key) if key.isprintable() else self


@dataclass(slots=True)
class Recent:
    """The latest rates of proxies, access networks and clients, for sparklines; those not shown are forgotten."""

    rates: defaultdict[tuple[str, str], deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_SAMPLES))
    )

    def add(self, data: Json) -> None:
        """One more answer."""
        present = set()
        for proxy in data.get("proxies") or ():
            key = (_OF_PROXY, str(proxy["name"]))
            present.add(key)
            self.rates[key].append(proxy["sent_bps"])
        for network in data["networks"]:
            for name, item in (("", network), *((client["client"], client) for client in network["clients"])):
                key = (str(network["name"]), name)
                present.add(key)
                self.rates[key].append(item["sent_bps"])
        for key in self.rates.keys() - present:
            del self.rates[key]


def sparkline(values: Iterable[float], *, ascii_only: bool = False) -> str:
    """A bar per value, relative to the largest."""
    values = list(values)
    bars = "_.-=#" if ascii_only else _BARS
    largest = max(values, default=0.0)
    return "".join(bars[int(value / largest * (len(bars) - 1) + 0.5)] if largest else bars[0] for value in values)


def render(data: Json, view: View, recent: Recent, width: int, *, problem: str | None, ascii_only: bool) -> Group:
    """The whole screen, `width` columns wide; `problem` says why the data is not up to date."""
    wide = width >= _WIDE
    table = Table(box=None, expand=True, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("network, client, port", no_wrap=True, overflow="ellipsis", ratio=3, min_width=22)
    for name in ("sent", "received", "cap", "use", "RTT"):
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("last 20 samples", no_wrap=True)
    table.add_column("state, reason", no_wrap=True, overflow="ellipsis", ratio=5 if wide else 3)
    for cells, style in _rows(data, recent, ascii_only=ascii_only):
        table.add_row(*(cells if wide else (*cells[:6], cells[7])), style=style)
    return Group(*_head(data, view, problem), table)


def _head(data: Json, view: View, problem: str | None) -> Iterator[Text]:
    chosen = f"sorted by {view.order}" + (f", filter {view.pattern!r}" if view.pattern else "")
    yield _line(f"{data['connections']} connections, {chosen}{', paused' if view.paused else ''}   {HELP}")
    if view.typed is not None:
        yield _line(f"filter: {view.typed}_", "bold")
    if problem is not None:
        yield _line(f"not up to date: {problem}", "bold red")
    if data["paused"]:
        yield _line("paused by the operator: nothing is throttled", "yellow")
    if data["sniffer_problem"] is not None:
        yield _line(f"sniffer: {data['sniffer_problem']}", "red")
    for error in data["errors"][:3]:
        yield _line(f"error: {error}", "red")


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _proxy_rows(proxies: Json, recent: Recent, *, ascii_only: bool) -> Iterator[tuple[Sequence[Text | str], str]]:
    """All proxies together, and each: first those that are not heard, then those that send most."""
    heard = [proxy for proxy in proxies if state_of(proxy) == REACHABLE]
    silent = [proxy for proxy in proxies if state_of(proxy) != REACHABLE]
    sums = {key: sum(proxy[key] for proxy in heard) for key in ("sent_bps", "received_bps", "connections")}
    cells = (_mbps(sums["sent_bps"]), _mbps(sums["received_bps"]))
    yield (f"{len(heard)} of {len(proxies)} proxies", *cells, *[""] * 4, f"{sums['connections']} connections"), "bold"
    busiest = sorted(heard, key=lambda proxy: -int(proxy["sent_bps"]))
    for proxy in [*silent, *busiest][:_PROXIES_SHOWN]:
        bars = sparkline(recent.rates[_OF_PROXY, str(proxy["name"])], ascii_only=ascii_only)
        cells, state = ("-", "-"), f"{state_of(proxy)}: heard of {heard_of(proxy)}"
        if state_of(proxy) == REACHABLE:
            cells = _mbps(proxy["sent_bps"]), _mbps(proxy["received_bps"])
            state = f"{proxy['connections']} connections, {proxy['throttled']} subflows throttled"
        yield (Text(f"  {proxy['name']}"), *cells, "", "", "", bars, Text(state)), STYLES[proxy["state"]]
    if len(proxies) > _PROXIES_SHOWN:
        yield (f"  {len(proxies) - _PROXIES_SHOWN} more proxies", *[""] * 7), "dim"


def _rows(data: Json, recent: Recent, *, ascii_only: bool) -> Iterator[tuple[Sequence[Text | str], str]]:
    if data.get("proxies"):  # missing while an earlier version runs
        yield from _proxy_rows(data["proxies"], recent, ascii_only=ascii_only)
    for network in data["networks"]:
        name = str(network["name"]) if network["name"] is not None else "in no access network"
        bars = sparkline(recent.rates[str(network["name"]), ""], ascii_only=ascii_only)
        present = {kind: rate["rate"] for kind, rate in network["rates"]["downlink"].items()}
        rates = [f"{kind} {rate}" for kind, rate in present.items() if rate]
        per = f", per {network['per']}" if rates else ""
        cells = (_mbps(network["sent_bps"]), _mbps(network["received_bps"]))
        yield (Text(name), *cells, present["cap"] or "-", "", "", bars, Text(", ".join(rates) + per)), "bold"
        for client in network["clients"]:
            bars = sparkline(recent.rates[str(network["name"]), client["client"]], ascii_only=ascii_only)
            yield (Text(f"  {named(client['client'], client.get('device'))}"), *_client_cells(client), bars, ""), ""
            for subflow in client["subflows"]:
                yield _subflow_cells(subflow), _STYLES[subflow["state"]]
            if client["more_subflows"]:
                yield (f"    {client['more_subflows']} more subflows", *[""] * 7), "dim"
        if network["more_clients"]:
            yield (f"  {network['more_clients']} more clients", *[""] * 7), "dim"


def _client_cells(client: Json) -> tuple[str, ...]:
    rate = client["rate_bps"]
    return (
        _mbps(client["sent_bps"]),
        _mbps(client["received_bps"]),
        "-" if rate is None else _mbps(rate),
        "-" if rate is None else _use(client["throttled_bps"], rate),
        "",
    )


def _subflow_cells(subflow: Json) -> tuple[Text | str, ...]:
    downlink, sent, rtt = subflow["downlink"], subflow["sent_bps"], subflow["rtt_ms"]
    rate = downlink["rate_bps"]
    not_enforced = subflow["not_enforced"]
    reason = f"not enforced: {not_enforced}" if not_enforced else shown_reason(subflow)
    state = "policed" if subflow["uplink"]["policed"] else subflow["state"]
    return (
        Text(f"    port {subflow['client_port']}"),
        _mbps(sent),
        _mbps(subflow["received_bps"]),
        downlink["rate"] or "-",
        "-" if rate is None or sent is None else _use(sent, rate),
        "-" if rtt is None else f"{rtt:.0f} ms",
        "",
        Text(f"{state}: {reason}"),
    )


def _mbps(bits_per_second: float | None) -> str:
    return "-" if bits_per_second is None else f"{bits_per_second / 1e6:.2f} M"


def _use(sent: float, rate: float) -> str:
    return f"{100 * sent / rate:.0f} %"
