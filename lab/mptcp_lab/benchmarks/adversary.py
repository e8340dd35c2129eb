"""What attacks achieve: the rate of the attacked path, or the attacker's, before, during and after each.

An attack is held off if during it a throttled path carries at most 1.05 of its rate over any 5 s, and a free path at
least 0.98 of what it carried before. If a host off the path attacks, connections must also be shown as they are.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from mptcp_lab.adversary.attack import CLIENTS, PORTS, Attack, Site, prepare
from mptcp_lab.adversary.catalogue import ATTACKS
from mptcp_lab.adversary.trial import Outcome, Window, carry_out
from mptcp_lab.benchmarks.measure import command_line, write_json
from mptcp_lab.origin import Origin, start_origin
from mptcp_lab.services import Services
from mptcp_lab.squid import start_squid
from mptcp_lab.topology import Lab, build

if TYPE_CHECKING:
    from collections.abc import Sequence


def measure(attack: Attack, lab: Lab, origin: Origin, seconds: float, name: str) -> Outcome:
    """Carry out an attack with services of its own."""
    with Services(lab.proxy, attack.networks, ports=PORTS, name=name) as services:
        return carry_out(attack, Site(lab, origin, services), seconds)


def _row(outcome: Outcome) -> str:
    windows = (outcome.before, outcome.during, outcome.after)
    rates = "".join(f"{'-' if window is None else format(window.rate, '.2f'):>8}" for window in windows)
    during = outcome.during
    verdict = "yes" if outcome.held_off() else "NO"
    return f"{outcome.attack.name:32}{rates}{during.peak:8.2f}{100 * during.share:7.0f} %  {verdict}"


def _json(outcome: Outcome) -> dict[str, object]:
    def window(measured: Window | None) -> dict[str, object] | None:
        return None if measured is None else asdict(measured)

    return {
        "attack": outcome.attack.name,
        "does": outcome.attack.does,
        "by": outcome.attack.by,
        "before": window(outcome.before),
        "during": window(outcome.during),
        "after": window(outcome.after),
        "held_off": outcome.held_off(),
    }


def _chosen(names: Sequence[str]) -> list[Attack]:
    return [attack for attack in ATTACKS if not names or attack.name in names]


def main() -> None:
    """Print a row per attack."""
    parser = command_line("adversary", __doc__)
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="of each measurement, 5 or more; default: %(default)g"
    )
    parser.add_argument("--attacks", nargs="+", default=(), choices=[attack.name for attack in ATTACKS], metavar="NAME")
    options = parser.parse_args()
    print(f"{'':32}{'Mb/s over Ethernet':>24}{'any 5 s':>8}{'shown':>9}")
    print(f"{'attack':32}{'before':>8}{'during':>8}{'after':>8}{'at most':>8}{'throttled':>9}  held off")
    rows = []
    with build(CLIENTS) as lab:
        start_squid(lab.proxy)
        prepare(lab)
        origin = start_origin(lab.origin)
        for number, attack in enumerate(_chosen(options.attacks)):
            outcome = measure(attack, lab, origin, options.seconds, f"throttle-{number}")
            print(_row(outcome), flush=True)
            rows.append(_json(outcome))
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
