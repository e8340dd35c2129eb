"""Metrics against real traffic: promtool accepts them, they equal the history, and Prometheus scrapes them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from polling import eventually
from prometheus_client.parser import text_string_to_metric_families
from proxy_world import MEGABYTE, Hosts, ProxyWorld

from mptcp_lab.process import run

if TYPE_CHECKING:
    from mptcp_lab.process import Process

ADDRESS: Final = "http://127.0.0.1:9721/metrics"
MONITORING: Final = Path(__file__).parents[2] / "config/examples/monitoring"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def hosts(hosts: Hosts) -> Hosts:
    hosts.lab.proxy.ip(["link set lo up"])
    return hosts


def scraped(world: ProxyWorld, *options: str) -> str:
    return world.proxy.run("curl", "-sS", "--fail", *(options or (ADDRESS,))).stdout


def on_the_socket(world: ProxyWorld) -> str:
    return scraped(world, "--unix-socket", str(world.services.sockets.metrics), "http://localhost/metrics")


def samples(text: str) -> Samples:
    return {
        (sample.name.removeprefix("mptcpthrottle_"), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def test_metrics_of_a_capped_download_equal_status_and_suit_promtool(world: ProxyWorld) -> None:
    world.begin_capped()
    eventually(lambda: value(samples(scraped(world)), "subflows", network="ethernet", state="cap") == 1, "a cap")
    file = world.proxy.directory / "metrics.txt"
    file.write_text(scraped(world), encoding="utf-8")
    checked = world.proxy.run("sh", "-c", f"promtool check metrics < {file}", check=False)
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    found = samples(scraped(world))
    assert value(found, "subflows", network="wifi", state="free") == 1
    assert value(found, "connections", paths="multi") == 1
    assert value(found, "rate_bytes_per_second", network="ethernet", direction="downlink", kind="cap") == 125_000
    assert value(found, "ready", service="mptcp-sniffer") == 1
    assert value(found, "join_to_cap_seconds_count") >= 1
    totals: dict[str, dict[str, float]] = {}

    def has_carried() -> bool:
        totals.update({network["name"]: network["totals"] for network in world.services.status()["networks"]})
        return totals["wifi"]["ip_sent"] > 10 * MEGABYTE

    eventually(has_carried, "10 MB over Wi-Fi")
    world.abort()

    def is_equal() -> bool:
        found = samples(scraped(world))
        return has_carried() and all(
            value(found, "sent_bytes_total", network=name, throttled="true")
            + value(found, "sent_bytes_total", network=name, throttled="false")
            == totals[name]["ip_sent"]
            and value(found, "received_bytes_total", network=name) == totals[name]["ip_received"]
            and value(found, "rtt_seconds_count", network=name) == totals[name]["rtt_samples"]
            for name in totals
        )

    eventually(is_equal, "metrics and status equal")
    held = value(samples(scraped(world)), "sent_bytes_total", network="ethernet", throttled="true")
    assert 0 < held <= totals["ethernet"]["ip_sent"]


def test_alerts_fire_when_they_should() -> None:
    run(["promtool", "check", "config", MONITORING / "prometheus.yaml"])
    assert "SUCCESS" in run(["promtool", "test", "rules", MONITORING / "prometheus-alerts-test.yaml"]).stdout
    alerts = re.findall(r"- alert: (\w+)", (MONITORING / "prometheus-alerts.yaml").read_text(encoding="utf-8"))
    tests = (MONITORING / "prometheus-alerts-test.yaml").read_text(encoding="utf-8")
    tested = re.findall(r"^  name: (\w+)", tests, re.MULTILINE)
    assert sorted(alerts) == sorted(tested)


def test_busiest_clients_are_on_the_unix_socket_alone(world: ProxyWorld) -> None:
    world.services.configure_section("metrics", clients=True)
    world.daemon.stop()
    world.start_daemon()
    assert world.download(3 * MEGABYTE).wait().intact
    eventually(lambda: 'client_sent_bytes{client="10.' in on_the_socket(world), "clients on the socket", within=20)
    assert "client_sent_bytes" not in scraped(world)


class Prometheus:
    """A Prometheus beside the daemon, with our example of a configuration, scraping every second."""

    def __init__(self, world: ProxyWorld) -> None:
        self._world = world
        directory = world.proxy.directory / "prometheus"
        directory.mkdir()
        text = (MONITORING / "prometheus.yaml").read_text(encoding="utf-8").replace("15s", "1s")
        (directory / "prometheus.yaml").write_text(text, encoding="utf-8")
        (directory / "prometheus-alerts.yaml").write_bytes((MONITORING / "prometheus-alerts.yaml").read_bytes())
        options = (
            f"--config.file={directory}/prometheus.yaml",
            f"--storage.tsdb.path={directory}/data",
            "--web.listen-address=127.0.0.1:9090",
        )
        self.process: Process = world.proxy.start("prometheus", "prometheus", *options)

    def ask(self, path: str, *options: str) -> Any:  # noqa: ANN401
        """What the API answers, {} if it does not."""
        command = ("curl", "-sS", "--get", *options, f"http://127.0.0.1:9090/api/v1/{path}")
        answered = self._world.lab.proxy.run(*command, check=False).stdout
        # While it starts, it answers in plain text.
        return json.loads(answered)["data"] if answered.startswith("{") else {}

    def query(self, expression: str) -> list[Any]:
        """The result of an expression."""
        result: list[Any] = self.ask("query", "--data-urlencode", f"query={expression}").get("result", [])
        return result

    def alerts(self) -> set[str]:
        """The alerts that fire, or soon will."""
        return {alert["labels"]["alertname"] for alert in self.ask("alerts").get("alerts", [])}

    def part_of_cap(self) -> float:
        """What has been sent to capped subflows in 5 s, as a fraction of the cap."""
        sent = 'sum by (network) (rate(mptcpthrottle_sent_bytes_total{throttled="true"}[5s]))'
        found = self.query(f"{sent} / on (network) mptcpthrottle_rate_bytes_per_second")
        return float(found[0]["value"][1]) if found else 0.0

    def is_scraping(self) -> bool:
        """Whether the daemon has been scraped."""
        return self.query('up{job="mptcp-throttle"} == 1') != []


def test_dashboard_and_alerts_work_in_prometheus(world: ProxyWorld) -> None:
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    expressions = [e.replace("$__rate_interval", "20s").replace("$instance", ".*") for e in panels]
    assert len(expressions) > 15
    prometheus = Prometheus(world)
    try:
        world.begin_capped()
        eventually(prometheus.is_scraping, "Prometheus scrapes the daemon")

        def without_data() -> list[str]:
            return [expression for expression in expressions if not prometheus.query(expression)]

        eventually(lambda: not without_data(), "every expression of the dashboard has data", within=60)
        eventually(lambda: 0.8 < prometheus.part_of_cap() < 1.3, "the capped subflow has what its cap allows")
        world.daemon.stop()
        eventually(lambda: "MptcpThrottleDown" in prometheus.alerts(), "an alert that the daemon is down")
    finally:
        prometheus.process.stop()
