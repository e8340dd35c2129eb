"""What rules that know no deadlines would take of Ethernet for a video over varying Wi-Fi: a model without any network.

Each rule knows at once what Wi-Fi carries, and nothing of its future or of the player. The player is the lab's, in each
trace of `policies/video`, for 92 s. Ethernet has 10 Mb/s and a cap of 1 Mb/s.

* `uncapped`: Ethernet carries all that it can.
* `overflow`: Ethernet carries what Wi-Fi lacks of a rate.
* `after N MB`: the same, once the video so far is N MB behind that rate.

`MB`: what Ethernet carries, median. `slower`: traces in which the mean bitrate is below 98 % of that without a cap.
`stalls`: of all traces. `of optimum`: what Ethernet carries, divided by the least that is possible for the same
bitrates without a stall (`mptcp_lab.video`); median, least and most. A trace whose least is below 0.1 MB does not
count.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_lab.playback import Playback
from mptcp_lab.video import least_bytes, segment_bytes, wifi_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mptcp_lab.playback import Played
    from mptcp_lab.video import Step

_ETHERNET: Final = 9_600_000
"""What Ethernet carries of its 10 Mb/s, without what only frames have."""
_CAP: Final = 1_000_000
_SEGMENTS: Final = 23
_TRACE_SECONDS: Final = 300.0
_STEP_SECONDS: Final = 0.05
_SMALL_BYTES: Final = 1e5
_LEAST_BITRATE: Final = 0.98
_MEGA: Final = 1e6


@dataclass(frozen=True, slots=True)
class Rule:
    """Ethernet carries what Wi-Fi lacks of `rate` (bits/s), once the video so far is `after_bytes` behind it."""

    name: str
    rate: float
    after_bytes: float = 0.0


_RULES: Final = (
    Rule("uncapped", 1e9),
    *(Rule(f"overflow {rate:g} Mb/s", rate * _MEGA) for rate in (4, 4.5, 5, 5.3, 6, 7)),
    *(Rule(f"after {size} MB, 6 Mb/s", 6 * _MEGA, size * _MEGA) for size in (1, 2, 3, 4)),
)


def play(trace: Sequence[Step], rule: Rule) -> tuple[float, list[Played]]:
    """The bytes that Ethernet carries while the player plays, and the segments."""
    begins = [step.at for step in trace]
    playback, at, carried, behind = Playback(), 0.0, 0.0, 0.0
    for _ in range(_SEGMENTS):
        at += playback.seconds_until_room(at)
        bitrate, requested = playback.next_bitrate(at), at
        left = segment_bytes(bitrate)
        while left > 1:
            wifi = trace[bisect_right(begins, at) - 1].rate
            wanted = rule.rate - wifi if behind >= rule.after_bytes else 0
            ethernet = min(max(wanted, _CAP), _ETHERNET)
            seconds = min(_STEP_SECONDS, left * 8 / (wifi + ethernet))
            behind = max(behind + (rule.rate - wifi - ethernet) / 8 * seconds, 0.0)
            left -= (wifi + ethernet) / 8 * seconds
            carried += ethernet / 8 * seconds
            at += seconds
        playback.add(bitrate, requested, at)
    return carried, playback.segments


def main() -> None:
    """Print a row per rule."""
    parser = command_line("overflow-model", __doc__)
    parser.add_argument("--traces", type=int, default=30, help="default: %(default)s")
    options = parser.parse_args()
    traces = [wifi_trace(seed, _TRACE_SECONDS) for seed in range(1, options.traces + 1)]
    fastest = [_bitrate(play(trace, _RULES[0])[1]) for trace in traces]
    rows = []
    print(f"{'':22}{'MB':>6}{'slower':>8}{'stalls':>8}  of optimum")
    for rule in _RULES:
        carried, times, slower, stalls = [], [], 0, 0
        for trace, bitrate in zip(traces, fastest, strict=True):
            taken, segments = play(trace, rule)
            carried.append(taken / _MEGA)
            slower += _bitrate(segments) < _LEAST_BITRATE * bitrate
            stalls += sum(segment.stalled > _STEP_SECONDS for segment in segments)
            least = least_bytes(trace, segments, _ETHERNET)
            if least is not None and least >= _SMALL_BYTES:
                times.append(taken / least)
        times = times or [math.nan]
        of_optimum = median(times), min(times), max(times)
        rows.append((rule.name, median(carried), slower, stalls, *of_optimum))
        ratios = ", ".join(f"{each:.1f}" for each in of_optimum)
        print(f"{rule.name:22}{median(carried):6.1f}{slower:8}{stalls:8}  {ratios}", flush=True)
    write_json(options.json, rows)


def _bitrate(segments: Sequence[Played]) -> float:
    return sum(segment.bitrate for segment in segments) / len(segments)


if __name__ == "__main__":
    main()
