"""The metrics that a snapshot and the latest observation show.

Their number depends on the access networks alone, never on clients, and no label has a token, a port or an address;
except those of clients, which `metrics.clients` turns on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from typing import Final, NamedTuple

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from mptcp_throttle.command_line import version
from mptcp_throttle.features import FeatureName
from mptcp_throttle.rpc import Json, RpcError
from mptcp_throttled.accounting.accounts import RTT_BOUNDS, NetworkAccounts
from mptcp_throttled.accounting.budget_account import BudgetTotals
from mptcp_throttled.accounting.control_group import ComparedGroups
from mptcp_throttled.accounting.history_rows import ClientSums
from mptcp_throttled.answers.subflow_counts import STATES, UPLINK_STATES, CountedSubflows, SubflowCounts
from mptcp_throttled.answers.view import View
from mptcp_throttled.control.running_config import RunningConfig
from mptcp_throttled.reporting.instruments import NAMESPACE
from mptcp_throttled.vocabulary.features import FeatureState
from mptcp_throttled.vocabulary.fleet import FleetState, LeaseState, Presence
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.traffic import Traffic

_NO_NETWORK: Final = "none"


class MetricFamilies(Collector):
    """A collector of prometheus_client: `collect` may be called in any thread, but in one at a time.

    `sniffer_status` gives the sniffer's `status`, and raises RpcError. `budgets` gives the totals of budgets,
    `top_clients` the sums of the busiest clients; None: clients have no metrics.
    """

    def __init__(
        self,
        config: RunningConfig,
        view: Callable[[], View],
        sniffer_status: Callable[[], Json],
        budgets: Callable[[], Iterable[BudgetTotals]],
        top_clients: Callable[[], Iterable[ClientSums]] | None = None,
    ) -> None:
        self._config = config
        self._view = view
        self._sniffer_status = sniffer_status
        self._budgets = budgets
        self._top_clients = top_clients
        self._counted = CountedSubflows()

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        view = self._view()
        snapshot = view.snapshot
        yield from _service_families(snapshot, self._config)
        yield from _subflow_families(view, self._counted.of(snapshot))
        yield from _rate_families(snapshot)
        yield from _traffic_families([network.name for network in snapshot.networks], view.accounts)
        yield from _budget_families(self._budgets())
        if view.groups is not None:
            yield from _control_group_families(view.groups)
        if view.fleet is not None:
            yield from _fleet_families(view.fleet, view.now.monotonic)
        if view.leases is not None:
            yield from _lease_families(view.leases)
        with suppress(RpcError):  # `ready` says whether it answers
            yield from _sniffer_families(self._sniffer_status())
        if self._top_clients is not None:
            yield from _client_families(list(self._top_clients()))


def _service_families(snapshot: Snapshot, config: RunningConfig) -> Iterator[Metric]:
    status = config.status()
    yield _gauge("build_info", "Always 1; the label is the version.", ("version",), [((version(),), 1)])
    ready = {"mptcp-throttled": True, "mptcp-sniffer": snapshot.sniffer.problem is None}
    yield _gauge(
        "ready",
        "Whether a service works. mptcp-sniffer: the daemon follows its table.",
        ("service",),
        [((service,), is_ready) for service, is_ready in ready.items()],
    )
    yield _value("paused", "Whether the operator has paused all caps and limits.", snapshot.operator.pause is not None)
    yield _value("config_last_reload_successful", "Whether the last reload was accepted.", not status["problems"])
    yield _value(
        "config_last_reload_success_timestamp_seconds",
        "When the present configuration was loaded, in seconds since the epoch.",
        status["loaded_at"],
    )
    policy = config.config.policy
    if policy is not None:
        text = "Number of the policy of the fleet in use; absent while local files are."
        yield _value("policy_number", text, policy.version.number)
    yield _gauge(
        "feature_ready",
        "Whether a kernel feature is in place.",
        ("feature",),
        [((name,), snapshot.problem_of(name) is None) for name in FeatureName],
    )
    steering = snapshot.features.get(FeatureName.STEERING, FeatureState()).counters
    yield _counter("pulses", "How often a capped subflow was allowed to send.", (), [((), steering.get("pulses", 0))])
    yield _value("unresolved_errors", "Errors that last, as `status` shows them.", len(snapshot.errors))


def _subflow_families(view: View, counted: SubflowCounts) -> Iterator[Metric]:
    networks: list[str | None] = [*(network.name for network in view.snapshot.networks), None]
    yield _gauge(
        "connections",
        "MPTCP connections, by whether they have one subflow or several.",
        ("paths",),
        [((paths,), counted.connections[paths]) for paths in ("single", "multi")],
    )
    yield _gauge(
        "subflows",
        "Subflows by their downlink: capped, limited, free and regular (free), or free and a backup.",
        ("network", "state"),
        [((name or _NO_NETWORK, state), counted.downlinks[name, state]) for name in networks for state in STATES],
    )
    yield _gauge(
        "uplinks",
        "Subflows whose uplink is capped, limited, policed (the excess is dropped) or free.",
        ("network", "state"),
        [((name or _NO_NETWORK, state), counted.uplinks[name, state]) for name in networks for state in UPLINK_STATES],
    )
    not_enforced = len(view.enforcement.not_enforced)
    yield _value("not_enforced_subflows", "Subflows whose rate is applied but not enforced.", not_enforced)


def _rate_families(snapshot: Snapshot) -> Iterator[Metric]:
    yield _gauge(
        "rate_bytes_per_second",
        "Present cap or limit, overrides included; absent if there is none.",
        ("network", "direction", "kind"),
        [
            ((network.name, kind.direction, kind.word), rate.bits_per_second / 8)
            for network in snapshot.networks
            for kind, rate in snapshot.terms.rates[network.name].items()
        ],
    )
    overridden = {override.network for override in snapshot.operator.overrides if override.client is None}
    yield _gauge(
        "overridden",
        "Whether a rate of the access network was set by hand.",
        ("network",),
        [((network.name,), network.name in overridden) for network in snapshot.networks],
    )


def _traffic_families(names: Sequence[str], accounts: Mapping[str, NetworkAccounts]) -> Iterator[Metric]:
    traffic = {name: accounts[name].traffic if name in accounts else Traffic() for name in names}
    throttled = [((name, "true"), sums.ip_sent_throttled) for name, sums in traffic.items()]
    free = [((name, "false"), sums.ip_sent - sums.ip_sent_throttled) for name, sums in traffic.items()]
    yield _counter(
        "sent_bytes",
        "IP bytes sent to clients; throttled: while the subflow was capped or limited.",
        ("network", "throttled"),
        [*throttled, *free],
    )
    received = [((name,), sums.ip_received) for name, sums in traffic.items()]
    yield _counter("received_bytes", "IP bytes received from clients.", ("network",), received)
    held_back = [((name,), sums.held_back_ms / 1000) for name, sums in traffic.items()]
    yield _counter(
        "held_back_seconds",
        "Time, summed over connections, in which data waited for a capped subflow that was held back.",
        ("network",),
        held_back,
    )
    repeated = [((name,), sums.retransmitted) for name, sums in traffic.items()]
    yield _counter("retransmitted_bytes", "Payload bytes sent again to clients.", ("network",), repeated)
    rtt = HistogramMetricFamily(
        f"{NAMESPACE}_rtt_seconds",
        "Smoothed RTTs: one sample per observation (every 0.05 to 5 s) of each subflow that carries something.",
        labels=("network",),
    )
    for name, sums in traffic.items():
        counts = accounts[name].rtts if name in accounts else (0,) * (len(RTT_BOUNDS) + 1)
        below = 0
        buckets = []
        for bound, count in zip((*map(str, RTT_BOUNDS), "+Inf"), counts, strict=True):
            below += count
            buckets.append((bound, below))
        rtt.add_metric((name,), buckets, sums.rtt_seconds)
    yield rtt


class _BudgetSums(NamedTuple):
    """The sums over budgets with the same labels: that of a network or its clients, or those of all devices."""

    amount: int = 0
    used: int = 0
    reached: tuple[int, ...] = ()

    def plus(self, budget: BudgetTotals) -> _BudgetSums:
        """The sums with this budget."""
        reached = zip_longest(self.reached, budget.reached, fillvalue=0)
        return _BudgetSums(self.amount + budget.budget.amount, self.used + budget.used, tuple(map(sum, reached)))


def _budget_families(budgets: Iterable[BudgetTotals]) -> Iterator[Metric]:
    labelled: dict[tuple[str, ...], _BudgetSums] = {}
    for each in budgets:
        budget = each.budget
        key = (_NO_NETWORK if budget.networks else each.owner, budget.owner, budget.counting, budget.every)
        labelled[key] = labelled.get(key, _BudgetSums()).plus(each)
    labels = ("network", "per", "direction", "every")
    yield _gauge(
        "budget_bytes",
        "IP bytes of a budget for a period; per client: of each client; per device: of all devices together, in all "
        f"their networks, with the label network `{_NO_NETWORK}`.",
        labels,
        [(key, sums.amount) for key, sums in labelled.items()],
    )
    yield _gauge(
        "budget_used_bytes",
        "IP bytes of a budget used in the present period; per client or device: by all of them together.",
        labels,
        [(key, sums.used) for key, sums in labelled.items()],
    )
    yield _gauge(
        "budget_stage_reached",
        "How many clients or devices, or 1 for a network, have reached a stage of a budget; 1 is the first stage.",
        (*labels, "stage_number"),
        [
            ((*key, str(number)), count)
            for key, sums in labelled.items()
            for number, count in enumerate(sums.reached, start=1)
        ],
    )


def _client_families(clients: Sequence[ClientSums]) -> Iterator[Metric]:
    yield _gauge(
        "client_sent_bytes",
        "IP bytes sent in the last 10 minutes to each of the 20 busiest clients; only with metrics.clients.",
        ("client",),
        [((client.name,), client.ip_sent) for client in clients],
    )
    yield _gauge(
        "client_sent_throttled_bytes",
        "The part of client_sent_bytes that was capped or limited.",
        ("client",),
        [((client.name,), client.ip_sent_throttled) for client in clients],
    )
    yield _gauge(
        "client_held_back_seconds",
        "Time, summed over connections, in which data for the client was held back in the last 10 minutes.",
        ("client",),
        [((client.name,), client.held_back_ms / 1000) for client in clients],
    )


def _control_group_families(groups: ComparedGroups) -> Iterator[Metric]:
    sums = {"capped": groups.capped, "control": groups.control}
    yield _counter(
        "ended_connections",
        "Connections that have ended, with caps or in the control group; only with daemon.control_group.",
        ("group",),
        [((name,), group.sent.number) for name, group in sums.items()],
    )
    with_cap = [((name, "true"), group.sent_with_cap.total) for name, group in sums.items()]
    without = [((name, "false"), group.sent.total - group.sent_with_cap.total) for name, group in sums.items()]
    yield _counter(
        "ended_connections_sent_bytes",
        "Payload bytes sent on them; with_cap: over access networks with a cap.",
        ("group", "with_cap"),
        [*with_cap, *without],
    )


def _fleet_families(fleet: FleetState, now: float) -> Iterator[Metric]:
    yield _value("fleet_ready", "Whether totals are shared with other proxies; only with fleet.url.", not fleet.problem)
    if fleet.exchanged_at is not None:
        text = "Seconds since totals were last shared with other proxies; absent before the first time."
        yield _value("fleet_age_seconds", text, max(now - fleet.exchanged_at, 0.0))
    text = "Whether the list of proxies can be read; if not, states of proxies stay as they were."
    yield _value("fleet_list_ready", text, not fleet.list_problem)
    present = Counter(proxy.presence for proxy in fleet.proxies.values())
    text = "Proxies of the fleet, this one included; late: silent for 10 s, gone: for 10 min."
    yield _gauge("fleet_proxies", text, ("state",), [((state,), present[state]) for state in Presence])
    yield _counter(
        "fleet_refused", "Values at the server of the fleet that were not believed.", (), [((), fleet.refused)]
    )


def _lease_families(leases: LeaseState) -> Iterator[Metric]:
    text = "Whether shared rates are leased; if not, other proxies are out of reach. Only with fleet.url."
    yield _value("leases_ready", text, not leases.rates.is_away)
    yield _value("leases", "Clients with a lease of a shared rate, in each direction.", leases.leases)


def _sniffer_families(status: Json) -> Iterator[Metric]:
    counters = status["counters"]
    dropped = [((), status["dropped"])]
    yield _counter("capture_dropped_packets", "Packets that the capture of the sniffer has dropped.", (), dropped)
    yield _value(
        "connections_elsewhere",
        "Whether connections on the wire are not in this kernel, and so never throttled, as `status` says.",
        status["kernel_view"].get("unlisted") is not None,  # missing while an earlier version runs
    )
    full = {"connections": "connections_not_tracked", "half_open": "handshakes_forgotten"}
    yield _counter(
        "table_full",
        "How often a table of the sniffer was full; half_open: of connections without subflows, or of closed subflows.",
        ("table",),
        [((table,), counters.get(name, 0)) for table, name in full.items()],
    )


_Values = Sequence[tuple[tuple[str, ...], float]]


def _value(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{NAMESPACE}_{name}", text, value=float(value))


def _gauge(name: str, text: str, labels: Sequence[str], values: _Values) -> Metric:
    family = GaugeMetricFamily(f"{NAMESPACE}_{name}", text, labels=labels)
    for texts, value in values:
        family.add_metric(texts, float(value))
    return family


def _counter(name: str, text: str, labels: Sequence[str], values: _Values) -> Metric:
    family = CounterMetricFamily(f"{NAMESPACE}_{name}", text, labels=labels)
    for texts, value in values:
        family.add_metric(texts, float(value))
    return family
