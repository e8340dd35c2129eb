"""The command line of `mptcp-throttle`: each command makes an RPC call and prints a table or JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from mptcp_throttle import service
from mptcp_throttle.cli import (
    budget_arguments,
    budget_tables,
    events,
    fleet_arguments,
    fleet_tables,
    monitoring,
    setup_arguments,
    simulation,
    tables,
)
from mptcp_throttle.cli.live import show_live, show_once
from mptcp_throttle.cli.live_view import View
from mptcp_throttle.command_line import argument, command_line, duration
from mptcp_throttle.config.load import find_sockets, load_config
from mptcp_throttle.config.notes import notes_of
from mptcp_throttle.config.schema import Config
from mptcp_throttle.errors import EX_FAILURE, ExitStatus, UserError
from mptcp_throttle.findings import Finding
from mptcp_throttle.follow_namespace import why_left
from mptcp_throttle.network_namespace import KEPT_AT, is_entered
from mptcp_throttle.rpc import Json, RpcClient, RpcError
from mptcp_throttle.rpc.wire import MAX_EVENTS, MAX_TOP_CLIENTS, Order
from mptcp_throttle.units import DURATION_SYNTAX, RATE_SYNTAX, Rate

_TIMEOUT_SECONDS: Final = 10.0
_RELOAD_SECONDS: Final = 60.0  # the files of 10 000 devices take 6 s, with a core of their own
_HISTORY_SECONDS: Final = 3600.0
_NETWORK_HELP: Final = "name of an access network"
_FORMAT: Final = 1
"""Of all documents that `--json` prints: another number where a reader of this one would go wrong."""

_MAX_ANSWER_BYTES: Final = 1 << 30  # `connections` has about a kilobyte per connection


def _rate(text: str) -> Rate | None:
    try:
        return None if text == "unlimited" else Rate.parse(text)
    except ValueError as error:
        raise ValueError(f"{error}; or unlimited") from error


def _client_number(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_TOP_CLIENTS:
        raise ValueError(f"allowed: a number from 1 to {MAX_TOP_CLIENTS}")
    return int(text)


def _event_number(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_EVENTS:
        raise ValueError(f"allowed: a number from 0 to {MAX_EVENTS}")
    return int(text)


def parser() -> argparse.ArgumentParser:
    """The command line; the manual page and the completion are made from it."""
    made = command_line("mptcp-throttle", "Show what mptcp-throttled does, and change rates and budgets.")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print JSON instead of tables")
    commands = made.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, parents=[common], help=text, description=text)
        command.set_defaults(run=run)
        return command

    add("status", _status, "show networks, rates, and what is applied in the kernel")
    add(
        "connections",
        _command("connections", tables.show_connections),
        "show every connection, and for each subflow its rate and the reason",
    )
    show_explanation = _command("explain", tables.show_explanation, "client", "network")
    explain = add("explain", show_explanation, "show the rates of a client, and which rules decide them")
    explain.add_argument("client", metavar="CLIENT", help="one of its addresses, or the name of its device")
    explain.add_argument("network", metavar="NETWORK", nargs="?", help=f"{_NETWORK_HELP}; default: all that it uses")
    top = add("top", _top, "show the busiest clients and their subflows live")
    top.add_argument("--once", action="store_true", help="print once and end")
    top.add_argument("--sort", type=Order, choices=list(Order), default=Order.SENT, help="order; default: %(default)s")
    top.add_argument(
        "--filter",
        default="",
        metavar="TEXT",
        help="only subflows with TEXT in address, port, device, network or state",
    )
    top.add_argument(
        "--number", type=argument(_client_number), default=10, metavar="N", help="clients of each network; default: 10"
    )
    history = add("history", _history, "show what an access network or a client has carried")
    history.add_argument(
        "name", metavar="NETWORK|CLIENT", help="an access network, or a client: one of its addresses, or its device"
    )
    history.add_argument(
        "--since",
        dest="seconds",
        type=argument(duration),
        default=_HISTORY_SECONDS,
        metavar="DURATION",
        help=f"how far back: {DURATION_SYNTAX}; default: 1h. By second up to 10m, by minute up to 1d, else by hour",
    )
    history.add_argument("--csv", action="store_true", help="print CSV instead of a table")
    show_budgets = _command("budgets", budget_tables.show_budgets, "name")
    budgets = add("budgets", show_budgets, "show what is used of budgets")
    owner_help = f"{budget_arguments.OWNER_HELP}; default: all"
    budgets.add_argument("name", metavar=budget_arguments.OWNER, nargs="?", help=owner_help)
    budget_arguments.add_to(add("budget", _budget, budget_arguments.HELP))
    shown_events = add("events", _events, "print what has happened: windows, caps, rates by hand, errors")
    shown_events.add_argument("--follow", action="store_true", help="go on printing what happens, until Ctrl-C")
    shown_events.add_argument(
        "--number", type=argument(_event_number), default=20, metavar="N", help="the latest N events; default: 20"
    )
    add("plan", _command("plan", tables.show_plan), "show the planned kernel state as tc, nft and iptables commands")
    doctor = add("doctor", _doctor, "find what keeps the services from working, and say what to do")
    doctor.add_argument("--monitoring", action="store_true", help="print one line for Nagios, Icinga and others")
    doctor.epilog = monitoring.MONITORING_HELP
    doctor.formatter_class = argparse.RawDescriptionHelpFormatter
    check = add("check-config", _check_config, "validate the configuration; needs no service and changes nothing")
    trace_help = "print what an overflow would have done with a recorded trace (docs/howto/networks.md)"
    check.add_argument("--simulate", type=Path, metavar="FILE", help=trace_help)
    set_rate = add("set-rate", _set_rate, "override a rate of an access network, for running transfers too")
    set_rate.add_argument("network", metavar="NETWORK", help=_NETWORK_HELP)
    set_rate.add_argument("rate", type=argument(_rate), metavar="RATE", help=f"{RATE_SYNTAX}; or unlimited")
    _add_client(set_rate, "override the rate of one client only")
    set_rate.add_argument("--limit", action="store_true", help="override the limit instead of the cap")
    set_rate.add_argument("--uplink", action="store_true", help="override the rate of what clients send")
    _add_duration(set_rate, "reset-rate")
    show_reset = _command("reset_rate", tables.show_network, "network", "client")
    reset_rate = add("reset-rate", show_reset, "remove the overrides of an access network")
    reset_rate.add_argument("network", metavar="NETWORK", help=_NETWORK_HELP)
    _add_client(reset_rate, "remove the overrides of one client instead")
    pause = _command("pause", tables.show_pause, "seconds")
    _add_duration(add("pause", pause, "free all subflows until `resume`"), "resume")
    add("resume", _command("resume", tables.show_resume), "end a pause")
    add("reload", _reload, "apply changed configuration files")
    fleet_arguments.add_to(add("fleet", _fleet, fleet_arguments.HELP))
    setup_arguments.add_to(add("setup", _setup, setup_arguments.HELP))
    return made


def _add_client(command: argparse.ArgumentParser, text: str) -> None:
    command.add_argument("--client", metavar="CLIENT", help=f"{text}: its address in that network, or its device")


def _add_duration(command: argparse.ArgumentParser, ended_by: str) -> None:
    command.add_argument(
        "--for",
        dest="seconds",
        type=argument(duration),
        metavar="DURATION",
        help=f"{DURATION_SYNTAX}; default: until {ended_by}",
    )


def _daemon(options: argparse.Namespace, timeout: float = _TIMEOUT_SECONDS) -> RpcClient:
    return RpcClient(find_sockets(options.config).daemon, timeout, max_bytes=_MAX_ANSWER_BYTES)


def _call(options: argparse.Namespace, method: str, *params: Json) -> Json:
    return _daemon(options).call(method, *params)


def _print(options: argparse.Namespace, data: Json, show: Callable[[Json], None]) -> None:
    if options.json:
        sys.stdout.write(json.dumps({"format": _FORMAT, **data}, indent=2) + "\n")
    else:
        show(data)


def _command(method: str, show: Callable[[Json], None], *names: str) -> Callable[[argparse.Namespace], None]:
    """A command that prints what `method` answers; its parameters are the options of these names."""

    def run(options: argparse.Namespace) -> None:
        _print(options, _call(options, method, *(getattr(options, name) for name in names)), show)

    return run


def _status(options: argparse.Namespace) -> None:
    data = _call(options, "status")
    try:
        data["capture"] = RpcClient(find_sockets(options.config).sniffer, _TIMEOUT_SECONDS).call("status")
    except RpcError:
        data["capture"] = None
    _print(options, data, tables.show_status)


def _top(options: argparse.Namespace) -> None:
    client = _daemon(options)

    def ask(view: View) -> Json:
        return client.call("top", *view.question)

    view = View(options.sort, options.filter, options.number)
    if options.json:
        _print(options, ask(view), lambda _: None)
    elif options.once:
        show_once(ask, view)
    else:
        show_live(ask, view)


def _events(options: argparse.Namespace) -> None:
    client = _daemon(options)

    def ask(position: events.Position, seconds: float) -> Json:
        return client.call("events", *position, seconds)

    line = partial(events.as_json, _FORMAT) if options.json else events.as_text
    (events.follow if options.follow else events.show)(ask, options.number, line)


def _history(options: argparse.Namespace) -> None:
    show = tables.write_history_csv if options.csv else tables.show_history
    _print(options, _call(options, "history", options.name, options.seconds), show)


def _set_rate(options: argparse.Namespace) -> None:
    direction, kind = "uplink" if options.uplink else "downlink", "limit" if options.limit else "cap"
    rate = None if options.rate is None else str(options.rate)
    answer = _call(options, "set_rate", options.network, direction, kind, rate, options.seconds, options.client)
    _print(options, answer, tables.show_network)


def _budget(options: argparse.Namespace) -> None:
    command = options.budget_command
    parameters = (getattr(options, name) for name in budget_arguments.PARAMETERS[command])
    answer = _call(options, f"budget_{command.replace('-', '_')}", *parameters)
    _print(options, answer, budget_tables.show_budgets)


def _reload(options: argparse.Namespace) -> None:
    answer = _accepted(_daemon(options, _RELOAD_SECONDS).call("reload"))
    # A sniffer that does not run will read the files when it starts.
    sniffer = RpcClient(find_sockets(options.config).sniffer, _RELOAD_SECONDS)
    with suppress(RpcError):
        _accepted(sniffer.call("reload"))
    _print(options, answer, tables.show_reload)


def _accepted(answer: Json) -> Json:
    if answer["problems"]:
        raise UserError("\n".join(answer["problems"]), EX_FAILURE if answer["valid"] else os.EX_CONFIG)
    return answer


def _findings(options: argparse.Namespace) -> list[Finding]:
    # pyroute2 takes as long to import as everything else, and no other command needs it.
    from mptcp_throttle.cli.doctor import examine

    config = load_config(options.config)
    source, may_enter = config.proxy.namespace, os.geteuid() == 0 and KEPT_AT.exists() and not is_entered()
    if source is not None and may_enter and why_left(source) is None:
        # ip-netns(8) also mounts the /sys that shows the interfaces of the namespace.
        os.execvp("ip", ("ip", "netns", "exec", KEPT_AT.name, sys.executable, *sys.orig_argv[1:]))  # noqa: S606
    return examine(options.config, config, _TIMEOUT_SECONDS)


def _monitor(options: argparse.Namespace) -> None:
    try:
        state, line = monitoring.judge(_findings(options))
    except UserError as error:
        state, line = monitoring.unknown(str(error))
    sys.stdout.write(f"{line}\n")
    if state:
        sys.stdout.flush()
        raise ExitStatus(state)


def _doctor(options: argparse.Namespace) -> None:
    if options.monitoring:
        _monitor(options)
        return
    findings = _findings(options)
    _print(options, {"findings": [finding._asdict() for finding in findings]}, tables.show_findings)
    harms = sum(finding.problem is not None and finding.harm for finding in findings)
    if harms:
        raise UserError(f"{harms} of {len(findings)} findings are problems")


def _policy_note(config: Config) -> Iterator[str]:
    if config.policy is not None:
        yield f"networks and devices are those of policy {config.policy} of fleet {config.policy.fleet}, no local ones"


def _check_config(options: argparse.Namespace) -> None:
    if options.simulate is not None:
        _print(options, simulation.simulate(options.config, options.simulate), simulation.show_simulation)
        return
    config = load_config(options.config)
    summary = {
        "file": str(options.config),
        "valid": True,
        "interfaces": list(config.proxy.interfaces),
        "ports": config.proxy.ports.items,
        "proxies": list(filter(None, config.proxies.by_name)),
        "networks": [network.name for network in config.networks],
        "devices": len(config.devices),
        "notes": [*_policy_note(config), *notes_of(config, time.time())],
    }
    _print(options, summary, tables.show_check)


def _fleet(options: argparse.Namespace) -> None:
    # ssl takes as long to import as half of everything else.
    from mptcp_throttle.cli import fleet_commands

    _print(options, fleet_commands.run(options), partial(fleet_tables.show, options.fleet_command))


def _setup(options: argparse.Namespace) -> None:
    # As with `doctor`: pyroute2.
    from mptcp_throttle.cli import setup_commands

    of_networks = options.setup_command == "networks"
    result = setup_commands.propose_networks(options) if of_networks else setup_commands.set_up(options)
    _print(options, result.data, setup_commands.show_networks if of_networks else setup_commands.show)
    if result.refusal is not None:
        raise result.refusal


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit status is one of those in `mptcp_throttle.errors`."""
    options = parser().parse_args(arguments)
    return service.run(lambda: options.run(options))
