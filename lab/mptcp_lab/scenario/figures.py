"""The figures of a run: what the `report` section of a scenario asks for, read from a recording."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from mptcp_lab.scenario.plan import Addresses, server_port
from mptcp_lab.scenario.recording import MEGA, interface_curves, received_curve
from mptcp_lab.squid import PORT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mptcp_lab.scenario.recording import Curve, Recording, SubflowSample
    from mptcp_lab.scenario.schema import FigureSection, Scenario

_SLOW: Final = 0.1


def measure(scenario: Scenario, recording: Recording) -> dict[str, float | None]:
    """Every figure of the report by its name; None where the run did not have it."""
    return {name: _MEASURES[figure.kind](scenario, recording, figure) for name, figure in scenario.report.items()}


def _window(recording: Recording, figure: FigureSection) -> tuple[float, float]:
    end = recording.duration if figure.end is None else min(figure.end, recording.duration)
    return figure.begin, end


def busiest(scenario: Scenario, curves: Iterable[tuple[str, Curve]], link: str) -> Curve | None:
    """Of the curves of received bytes, each with its port: that of the end of the link that received most."""
    ends = {str(port) for port in scenario.links[link].ends}
    at_link = [curve for port, curve in curves if port in ends]
    return max(at_link, key=lambda curve: curve.at(float("inf")) - curve.at(0), default=None)


def _link_curves(scenario: Scenario, recording: Recording, links: Iterable[str]) -> list[Curve]:
    curves = [(str(port), received) for port, (received, _) in interface_curves(recording.interfaces).items()]
    found = (busiest(scenario, curves, link) for link in links)
    return [curve for curve in found if curve is not None]


def _rate(scenario: Scenario, recording: Recording, figure: FigureSection) -> float | None:
    start, end = _window(recording, figure)
    if end <= start:
        return None
    return sum(curve.mbps(start, end) for curve in _link_curves(scenario, recording, figure.rate or ()))


def _volume(scenario: Scenario, recording: Recording, figure: FigureSection) -> float | None:
    start, end = _window(recording, figure)
    curves = _link_curves(scenario, recording, figure.volume or ())
    return sum(curve.at(max(end, start)) - curve.at(start) for curve in curves) / MEGA


def _samples_of(scenario: Scenario, recording: Recording, flow_name: str) -> list[SubflowSample]:
    """Samples of the sockets at which a flow arrives."""
    flow = scenario.flows[flow_name]
    port = server_port(scenario, flow_name)
    return [
        sample
        for sample in recording.subflows
        if sample.host == flow.receiver
        and (sample.socket.local_port == port if flow.via is None else sample.socket.remote_port == PORT)
    ]


def _received(scenario: Scenario, recording: Recording, figure: FigureSection) -> float | None:
    start, end = _window(recording, figure)
    samples = _samples_of(scenario, recording, figure.received or "")
    if figure.over is not None:
        link_of = Addresses(scenario).links()
        samples = [sample for sample in samples if link_of.get(sample.socket.local) in figure.over]
    return received_curve(samples).mbps(start, end) if end > start else None


def _goodput(_scenario: Scenario, recording: Recording, figure: FigureSection) -> float | None:
    return recording.flows[figure.goodput or ""].goodput


def _seconds(_scenario: Scenario, recording: Recording, figure: FigureSection) -> float | None:
    return recording.flows[figure.seconds or ""].seconds


def _gap(scenario: Scenario, recording: Recording, figure: FigureSection) -> float | None:
    """The longest time in which the flow was slower than a tenth of its mean; as fine as the sampling interval."""
    start, end = _window(recording, figure)
    curve = received_curve(_samples_of(scenario, recording, figure.gap or ""))
    if end <= start:
        return None
    least = curve.mbps(0, recording.duration) * _SLOW
    points = [start, *(at for at, _ in curve.points if start < at < end), end]
    longest, since = 0.0, start
    for before, at in pairwise(points):
        if curve.mbps(before, at) > least:
            longest, since = max(longest, before - since), at
    return max(longest, end - since)


def _join_to_cap(_scenario: Scenario, recording: Recording, figure: FigureSection) -> float | None:
    seconds = recording.join_to_cap.get(figure.join_to_cap or "")
    return None if seconds is None else seconds * 1000


def _counter(_scenario: Scenario, recording: Recording, figure: FigureSection) -> float | None:
    host, _, name = (figure.counter or "").partition(".")
    return recording.counters.get(host, {}).get(name)


_MEASURES: Final[dict[str, Callable[[Scenario, Recording, FigureSection], float | None]]] = {
    "rate": _rate,
    "volume": _volume,
    "received": _received,
    "goodput": _goodput,
    "seconds": _seconds,
    "gap": _gap,
    "join_to_cap": _join_to_cap,
    "counter": _counter,
}
