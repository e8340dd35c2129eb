"""The figures of a run: what the `report` section of a scenario asks for, read from a recording."""

from __future__ import annotations

from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Final

from mptcp_lab import origin
from mptcp_lab.curve import MEGA
from mptcp_lab.percentiles import percentile
from mptcp_lab.sampler import interface_curves, received_curve
from mptcp_lab.scenario.plan import Addresses, server_port
from mptcp_lab.scenario.recording import moments
from mptcp_lab.squid import PORT
from mptcp_lab.video import least_bytes, wifi_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mptcp_lab.curve import Curve
    from mptcp_lab.sampler import InterfaceSample, SubflowSample
    from mptcp_lab.scenario.recording import CapChange, Recording
    from mptcp_lab.scenario.scenario_schema import FigureSection, Scenario, WindowSection

_SLOW: Final = 0.1


def measure(scenario: Scenario, recording: Recording) -> dict[str, float | None]:
    """Every figure of the report by its name; None where the run did not have it."""
    figures: dict[str, float | None] = {}
    for name, figure in scenario.report.items():
        window = window_of(recording, scenario.part(figure))
        figures[name] = None if window is None else _MEASURES[figure.kind](scenario, recording, figure, *window)
    return figures


def window_of(recording: Recording, part: WindowSection) -> tuple[float, float] | None:
    """When that part of the run began and ended; None if an event did not happen or no time was left.

    It begins after an event is done, and ends before one begins.
    """
    begin = part.begin.resolve(moments(recording.events))
    begun = {event.name: event.at for event in recording.events if event.name is not None}
    end = recording.duration if part.end is None else part.end.resolve(begun)
    if begin is None or end is None:
        return None
    begin, end = max(begin, recording.start), min(end, recording.duration)
    return (begin, end) if begin < end else None


def present_rates(scenario: Scenario, samples: Sequence[InterfaceSample], now: float) -> dict[str, float]:
    """Mb/s that arrived over each link that has a rate, in the last second."""
    last = list(takewhile(lambda sample: sample.at > now - 1, reversed(samples)))
    curves = [(str(port), received) for port, (received, _) in interface_curves(last).items()]
    links = [name for name, link in scenario.links.items() if link.rate is not None]
    by_link = {link: busiest(scenario, curves, link) for link in links}
    return {link: curve.mbps(curve.points[0][0], curve.points[-1][0]) for link, curve in by_link.items() if curve}


def busiest(scenario: Scenario, curves: Iterable[tuple[str, Curve]], link: str) -> Curve | None:
    """The curve of the end of the link that received most; `curves` are those of received bytes, with their ports."""
    ends = {str(port) for port in scenario.links[link].ends}
    at_link = [curve for port, curve in curves if port in ends]
    return max(at_link, key=lambda curve: curve.at(float("inf")) - curve.at(0), default=None)


def _link_curves(scenario: Scenario, recording: Recording, links: Iterable[str]) -> list[Curve]:
    curves = [(str(port), received) for port, (received, _) in interface_curves(recording.interfaces).items()]
    of_links = (busiest(scenario, curves, link) for link in links)
    return [curve for curve in of_links if curve is not None]


def _rate(scenario: Scenario, recording: Recording, figure: FigureSection, start: float, end: float) -> float:
    return sum(curve.mbps(start, end) for curve in _link_curves(scenario, recording, figure.rate or ()))


def _volume(scenario: Scenario, recording: Recording, figure: FigureSection, start: float, end: float) -> float:
    curves = _link_curves(scenario, recording, figure.volume or ())
    return sum(curve.at(end) - curve.at(start) for curve in curves) / MEGA


def _samples_of(scenario: Scenario, recording: Recording, flow_name: str) -> list[SubflowSample]:
    """Samples of the sockets at which a flow arrives."""
    flow = scenario.flows[flow_name]
    is_upload = scenario.is_upload(flow_name)
    port = origin.PORT if is_upload else server_port(scenario, flow_name)
    is_server = flow.via is None or is_upload
    return [
        sample
        for sample in recording.subflows
        if sample.host == flow.receiver
        and (sample.socket.local_port == port if is_server else sample.socket.remote_port == PORT)
    ]


def _samples_over(
    scenario: Scenario, recording: Recording, flow_name: str, links: Sequence[str] | None
) -> list[SubflowSample]:
    """The samples of the flow's sockets on these links; None: on all."""
    samples = _samples_of(scenario, recording, flow_name)
    if links is None:
        return samples
    link_of = Addresses(scenario).links()
    return [sample for sample in samples if link_of.get(sample.socket.local) in links]


def _received(scenario: Scenario, recording: Recording, figure: FigureSection, start: float, end: float) -> float:
    samples = _samples_over(scenario, recording, figure.received or "", figure.over)
    return received_curve(samples).mbps(start, end)


def _subflow_bytes(scenario: Scenario, recording: Recording, figure: FigureSection, start: float, end: float) -> float:
    curve = received_curve(_samples_over(scenario, recording, figure.subflow_bytes or "", figure.over))
    return curve.at(end) - curve.at(start)


def _subflow_packets(
    scenario: Scenario, recording: Recording, figure: FigureSection, start: float, end: float
) -> float:
    samples = _samples_over(scenario, recording, figure.subflow_packets or "", figure.over)
    curve = received_curve(samples, lambda socket: socket.packets_received)
    return curve.at(end) - curve.at(start)


def _gap(scenario: Scenario, recording: Recording, figure: FigureSection, start: float, end: float) -> float:
    """The longest time in which the flow was slower than a tenth of its mean; as fine as the sampling interval."""
    curve = received_curve(_samples_of(scenario, recording, figure.gap or ""))
    least = curve.mbps(0, recording.duration) * _SLOW
    points = [start, *(at for at, _ in curve.points if start < at < end), end]
    longest, since = 0.0, start
    for before, at in pairwise(points):
        if curve.mbps(before, at) > least:
            longest, since = max(longest, before - since), at
    return max(longest, end - since)


def _bitrate(_scenario: Scenario, recording: Recording, figure: FigureSection, *_window: float) -> float | None:
    played = recording.flows[figure.bitrate or ""].played
    return sum(segment.bitrate for segment in played) / len(played) / MEGA if played else None


def _stalls(_scenario: Scenario, recording: Recording, figure: FigureSection, *_window: float) -> float | None:
    played = recording.flows[figure.stalls or ""].played
    return float(sum(segment.stalled > 0 for segment in played)) if played else None


def _least_volume(scenario: Scenario, recording: Recording, figure: FigureSection, *_window: float) -> float | None:
    name = figure.least_volume or ""
    played = recording.flows[name].played
    links = {link: scenario.links[link] for _, link in scenario.ports(scenario.flows[name].receiver)}
    trace = next(wifi_trace(link.trace, scenario.duration) for link in links.values() if link.trace is not None)
    others = sum(link.rate.bits_per_second for link in links.values() if link.trace is None and link.rate is not None)
    least = least_bytes(trace, played, others) if played else None
    return None if least is None else least / MEGA


def _of_network(recording: Recording, network: str | None) -> list[CapChange]:
    return [change for change in recording.caps if change.network == network]


def _join_to_cap(_scenario: Scenario, recording: Recording, figure: FigureSection, *_window: float) -> float | None:
    times = (change.join_to_cap for change in _of_network(recording, figure.join_to_cap))
    return next((seconds * 1000 for seconds in times if seconds is not None), None)


def _capped(_scenario: Scenario, recording: Recording, figure: FigureSection, *_window: float) -> float:
    return len({change.client for change in _of_network(recording, figure.capped) if change.mbps is not None})


def _lift(_scenario: Scenario, recording: Recording, figure: FigureSection, start: float, _end: float) -> float | None:
    capped: set[str] = set()
    for change in _of_network(recording, figure.lift):
        if change.mbps is not None:
            capped.add(change.client)
        elif change.client in capped:
            capped.remove(change.client)
            if not capped and change.at > start:
                return change.at - start
    return None


def _used(_scenario: Scenario, recording: Recording, figure: FigureSection, *_window: float) -> float | None:
    used = recording.used.get(figure.used or "")
    return None if used is None else used / MEGA


def _counter(_scenario: Scenario, recording: Recording, figure: FigureSection, *_window: float) -> float | None:
    increase = _increase(recording, figure.counter or "")
    if increase is None or figure.per is None:
        return increase
    whole = (_increase(recording, figure.per) or 0) - (_increase(recording, figure.without or "") or 0)
    return 100 * increase / whole if whole > 0 else None


def _increase(recording: Recording, counter: str) -> int | None:
    host, _, name = counter.partition(".")
    return recording.counters.get(host, {}).get(name)


def _payload(_scenario: Scenario, recording: Recording, figure: FigureSection, *_window: float) -> float | None:
    size = recording.flows[figure.payload or ""].size
    return None if size is None else size / MEGA


def _outage_length(_scenario: Scenario, recording: Recording, figure: FigureSection, *_window: float) -> float | None:
    seconds = recording.outages.get(figure.outage_length or "")
    return None if seconds is None else 1000 * seconds


def _completion(scenario: Scenario, recording: Recording, figure: FigureSection, *_window: float) -> float | None:
    sized = [name for name, flow in scenario.flows.items() if flow.size is not None]
    times = [recording.flows[name].seconds for name in sized]
    done = [seconds for seconds in times if seconds is not None]
    return percentile(done, figure.completion or 0) if done else None


def _path_setup(_scenario: Scenario, recording: Recording, figure: FigureSection, *_window: float) -> float | None:
    return 1000 * percentile(recording.setups, figure.path_setup or 0) if recording.setups else None


_MEASURES: Final[dict[str, Callable[[Scenario, Recording, FigureSection, float, float], float | None]]] = {
    "rate": _rate,
    "volume": _volume,
    "received": _received,
    "subflow_bytes": _subflow_bytes,
    "subflow_packets": _subflow_packets,
    "payload": _payload,
    "goodput": lambda _scenario, recording, figure, *_: recording.flows[figure.goodput or ""].goodput,
    "seconds": lambda _scenario, recording, figure, *_: recording.flows[figure.seconds or ""].seconds,
    "gap": _gap,
    "stalls": _stalls,
    "bitrate": _bitrate,
    "least_volume": _least_volume,
    "join_to_cap": _join_to_cap,
    "capped": _capped,
    "lift": _lift,
    "backups": lambda _scenario, recording, figure, *_: float(figure.backups in recording.backups),
    "used": _used,
    "restored": lambda _scenario, recording, *_: None if recording.restored is None else float(recording.restored),
    "counter": _counter,
    "out_of_order": lambda _scenario, recording, figure, *_: recording.disorder[figure.out_of_order or ""].percent,
    "out_of_order_in_subflows": lambda _scenario, recording, figure, *_: (
        recording.disorder[figure.out_of_order_in_subflows or ""].percent_in_subflows
    ),
    "out_of_order_buffer": lambda _scenario, recording, figure, *_: (
        recording.disorder[figure.out_of_order_buffer or ""].most_held / 1000
    ),
    "reorder_extent": lambda _scenario, recording, figure, *_: recording.disorder[figure.reorder_extent or ""].extent,
    "reassembly_wait": lambda _scenario, recording, figure, *_: recording.disorder[figure.reassembly_wait or ""].wait,
    "outage_length": _outage_length,
    "completion": _completion,
    "path_setup": _path_setup,
}
