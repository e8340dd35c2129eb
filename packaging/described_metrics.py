"""The metrics of the daemon in Markdown, as it serves them before anything has happened."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from prometheus_client import Metric

from markdown_text import code, table
from mptcp_throttle.config.load import load_config
from mptcp_throttle.model import Budget, Counting, Every, Per, RateKind, Stage
from mptcp_throttle.policy_bundle.bundle import PolicyVersion
from mptcp_throttle.policy_bundle.kept_policy import KeptPolicy
from mptcp_throttle.units import Rate
from mptcp_throttled.accounting.budget_account import BudgetTotals
from mptcp_throttled.accounting.control_group import ComparedGroups
from mptcp_throttled.accounting.history_rows import ClientSums
from mptcp_throttled.answers.metrics.families import MetricFamilies
from mptcp_throttled.answers.metrics.server import Exposition
from mptcp_throttled.answers.view import View
from mptcp_throttled.control.running_config import RunningConfig
from mptcp_throttled.observing.enforcement import Enforcement
from mptcp_throttled.vocabulary.clock import Now
from mptcp_throttled.vocabulary.fleet import FleetState, LeaseState
from mptcp_throttled.vocabulary.snapshot import Snapshot
from mptcp_throttled.vocabulary.terms import PresentTerms, Term

_CONFIG: Final = Path("config/mptcp-throttle.yaml")
_OF_PROCESS: Final = "process_"
_OF_THE_HOST: Final = {"network", "client", "version", "stage_number"}
"""Labels whose values depend on the host."""


def metrics() -> dict[str, list[str]]:
    """All metrics but those of the process, by name."""
    families = [family for family in _exposition().collect() if not family.name.startswith(_OF_PROCESS)]
    rows = sorted((code(_name(family)), family.type, _labels(family), family.documentation) for family in families)
    return {"metrics": table(("metric", "type", "labels", "meaning"), rows)}


def _exposition() -> Exposition:
    policy = KeptPolicy(Path(), PolicyVersion(1, "0", 0, "-"), "europe", 0.0)
    config = replace(load_config(_CONFIG), policy=policy)
    rates = dict.fromkeys(RateKind, Term(Rate(8_000)))
    terms = PresentTerms({network.name: rates for network in config.networks})
    snapshot, fleet = Snapshot(networks=config.networks, terms=terms), FleetState("", exchanged_at=0.0)
    groups, leases = ComparedGroups(0.01), LeaseState()
    view = View(snapshot, Enforcement(), {}, Now(0.0, 0.0), groups, fleet=fleet, leases=leases)
    sniffer = {"dropped": 0, "counters": {}, "kernel_view": {"unlisted": None}}
    running = RunningConfig(config, 0.0)
    clients = [ClientSums("10.1.0.1", 0, 0, 0)]
    return Exposition(MetricFamilies(running, lambda: view, lambda: sniffer, lambda: list(_budgets()), lambda: clients))


def _budgets() -> Iterator[BudgetTotals]:
    """All that there may be, but for the number of stages, which depends on the host."""
    for per in (Per.NETWORK, Per.CLIENT):
        for counting in Counting:
            for every in Every:
                budget = Budget(1, per, counting, every, 1, None, (Stage(1.0, {}),))
                yield BudgetTotals("lte", budget, 0, (0,))
                yield BudgetTotals("phone", replace(budget, networks=("lte",)), 0, (0,))


def _name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labels(family: Metric) -> str:
    values: dict[str, dict[str, None]] = {}
    for sample in family.samples:
        for label, value in sample.labels.items():
            if label != "le":
                values.setdefault(label, {})[value] = None
    return ", ".join(_label(label, each) for label, each in values.items())


def _label(name: str, values: Iterable[str]) -> str:
    return code(name) if name in _OF_THE_HOST else f"{code(name)} ({', '.join(values)})"
