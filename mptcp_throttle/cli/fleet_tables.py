"""What `fleet` and `status` say of policies, as tables and lines."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mptcp_throttle.cli.console import output_console
from mptcp_throttle.cli.times import shown_time
from mptcp_throttle.rpc import Json

REACHABLE: Final = "reachable"
STYLES: Final = {REACHABLE: "", "late": "yellow", "gone": "red"}
"""Of a line about a proxy, by its state."""
_MOST_SECONDS: Final = 120
"""Beyond, ages are in minutes."""
_OLD_SECONDS: Final = 10
"""A state that is at least as old as this is shown with its age."""


def show(command: str, data: Json) -> None:
    """The answer of a command of `fleet`."""
    console = output_console()
    match command:
        case "status":
            _show_status(console, data)
        case "new-key":
            console.print(f"private key: {data['file']}", markup=False)
            console.print(f"public key, for fleet.policy.keys of each proxy: {data['public_key']}", markup=False)
        case "forget":
            console.print(f"forgotten: {data['forgotten']}", markup=False)
        case _:
            _show_published(console, data)
    for note in data.get("notes", ()):
        console.print(f"note: {note}", style="yellow", markup=False)


def _show_published(console: Console, data: Json) -> None:
    published, latest = data["published"], data["latest"]
    if not data["changes"] and latest is not None:
        console.print(f"nothing was published: policy {_named(latest)} has these files", markup=False)
        return
    for change in data["changes"]:
        console.print(change, markup=False)
    if published is None:
        console.print("nothing was published")
    else:
        console.print(f"published: policy {_named(published)}; `mptcp-throttle fleet status` says who uses it")


def _show_status(console: Console, data: Json) -> None:
    policies = Table(f"policies of {data['fleet']}", "files", "published", "by", "digest", box=None)
    for policy in data["policies"]:
        published = shown_time(policy["published_at"], None)
        row = str(policy["number"]), str(policy["files"]), published, policy["author"], policy["digest"][:12]
        policies.add_row(*map(Text, row))
    console.print(policies if data["policies"] else f"the server has no policy of {data['fleet']}")
    if not data["proxies"]:
        console.print("no proxy has said which it uses")
        return
    proxies = Table("proxy", "policy", "since", "last heard", "problem", box=None)
    for proxy in data["proxies"]:
        since = "-" if proxy["since"] is None else shown_time(proxy["since"], None)
        heard = "now" if proxy["recent"] else shown_time(proxy["said_at"], None)
        number = "own files" if proxy["number"] is None else f"{proxy['number']} ({proxy['digest'][:12]})"
        proxies.add_row(*map(Text, (proxy["name"], number, since, heard, proxy["problem"] or "-")))
    console.print(proxies)


def show_proxies(console: Console, proxies: Json) -> None:
    """All proxies of the fleet, for `status`."""
    if not proxies or "state" not in proxies[0]:  # missing while an earlier version runs
        return
    table = Table("proxy", "state", "last heard", "version", "sends", "receives", "connections", "throttled", box=None)
    for proxy in proxies:
        carries: tuple[str, ...] = ("-",) * 4
        if state_of(proxy) == REACHABLE:
            rates = (f"{proxy[key] / 1e6:.2f} Mb/s" for key in ("sent_bps", "received_bps"))
            carries = *rates, str(proxy["connections"]), str(proxy["throttled"])
        cells = proxy["name"], state_of(proxy), heard_of(proxy), proxy["version"], *carries
        table.add_row(*map(Text, cells), style=STYLES[proxy["state"]])
    console.print(table)


def state_of(proxy: Json) -> str:
    """The state of a proxy; with its age if it could not be looked at lately."""
    age = proxy.get("state_age", 0.0)  # missing while an earlier version runs
    return str(proxy["state"]) if age < _OLD_SECONDS else f"{proxy['state']} {_ago(age)}"


def heard_of(proxy: Json) -> str:
    """When a proxy was heard of last."""
    return _ago(proxy["age"])


def _ago(age: float) -> str:
    return f"{age:.0f} s ago" if age < _MOST_SECONDS else f"{age / 60:.0f} min ago"


def show_policy(console: Console, policy: Json, zone: str | None) -> None:
    """The part of `status`."""
    used = policy["in_use"]
    if used is None:
        line = "its own files: it has adopted none"
    else:
        since = f"since {shown_time(used['adopted_at'], zone)}"
        line = f"{_named(used)} {since}, published {shown_time(used['published_at'], zone)} by {used['author']}"
    console.print(f"policy of fleet {policy['fleet']}: {line}", markup=False)
    for problem in filter(None, (policy["problem"], policy["away"])):
        console.print(f"policy of fleet {policy['fleet']}: {problem}", style="red", markup=False)


def _named(version: Json) -> str:
    return f"{version['number']} ({version['digest'][:12]})"
