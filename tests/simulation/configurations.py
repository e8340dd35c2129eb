"""The configuration files of a run, its variants for reloads, and what their rules must make of rates."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, tzinfo
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

from mptcp_throttle.config.load import load_config
from mptcp_throttle.config.schema import Config
from mptcp_throttle.model import Ailment

ZONES: Final = ("Europe/Madrid", "America/Santiago", "Pacific/Auckland", "UTC")
"""Those of Santiago skip midnight when summer time begins, and those of Auckland are on the other side of the date."""

DEVICES: Final = 4
"""How many clients, the first ones, have names."""

_SERVICE: Final = """\
proxy: {{interface: eth0, ports: [8080]}}
daemon: {{linger: 5s, reconcile_interval: 5s, wait_for_clock: {wait_for_clock}}}
time_zone: {zone}
run_directory: {directory}/run
state_directory: {directory}/state
"""
_WIFI: Final = "name: wifi\nsubnets: [10.2.0.0/16, 'fd00:2::/32']\npreference: 1\n"
_SATELLITE: Final = """\
name: satellite
subnets: [10.4.0.0/16, "fd00:4::/32"]
preference: 3
cap: 400kbit
budgets:
  - {{amount: {week}MB, per: network, direction: both, every: week, starts: Wed, then: {{limit: 300kbit}}}}
"""
_LTE: Final = """\
name: lte
subnets: [10.1.0.0/16, "fd00:1::/32"]
preference: 2
cap: {cap}
limit: {limit}
uplink: {{cap: 500kbit}}
schedule:
  - {{when: 02:00-05:30, cap: unlimited, counts: false}}
  - {{when: "Sat,Sun", cap: 2mbit}}
budgets:
  - amount: {month}MB
    per: network
    direction: down
    starts: {starts}
    then: [{{at: 50%, cap: 600kbit}}, {{at: 100%, cap: 256kbit, limit: 4mbit}}]
  - {{amount: {day}MB, per: client, direction: both, every: day, then: {{cap: 300kbit}}}}
  - {{amount: {rolling}MB, per: client, direction: down, every: week, rolling: true, then: {{cap: 200kbit}}}}
{more}"""
_DEVICE: Final = """\
name: phone-{number}
networks:
  lte: {{addresses: [{lte}]{rates}}}
  wifi: {{addresses: [{wifi}]}}
budgets:
  - {{amount: 60MB, every: week, starts: Mon, direction: both, networks: [lte], then: {{cap: 100kbit}}}}
"""
_FREE_FROM, _FREE_UNTIL = 2 * 60, 5 * 60 + 30
_WEEKEND: Final = 5


@dataclass(frozen=True)
class Variant:
    """What a reload may change of the network `lte`."""

    cap: str = "1mbit"
    limit: str = "20mbit"
    starts: int = 15
    more: str = ""


class Budgets(NamedTuple):
    """The amounts of those of `lte`, in MB, that of the `month` for each client."""

    month: int = 60
    day: int = 12
    rolling: int = 40


WIDE_BUDGETS: Final = Budgets(25, 60, 150)
"""Of clients that reach no stage of their own, within 90 minutes, even by bursts and overflows."""

OVERFLOW, BURST = "overflow: 6mbit\n", "burst: 5MB\n"
AILMENTS: Final = {
    Ailment.RTT: "round trip above 300ms",
    Ailment.LOSS: "loss above 5%",
    Ailment.RATE: "rate below 500kbit",
    Ailment.DATA_ACKS: "no DATA_ACKs",
}
"""What makes a path over `wifi` sick, in the words of a reason."""

_HEALTHY: Final = "healthy: {rtt: 300ms, loss: 5%, rate: 500kbit}\n"

VARIANTS: Final = (
    Variant(),
    Variant(cap="1500kbit"),
    Variant(limit="null"),
    Variant(cap="700kbit", limit="10mbit"),
    Variant(starts=31),
)

MORE_VARIANTS: Final = (
    *VARIANTS,
    Variant(more=BURST),
    Variant(more=OVERFLOW),
    Variant(more=OVERFLOW + BURST),
    Variant(limit="5mbit", more=OVERFLOW),
)
"""With overflows and bursts, too."""


class Rules(NamedTuple):
    """The rules of a run: what the files say first, and later, and the amounts of their budgets."""

    first: Variant = Variant()
    variants: tuple[Variant, ...] = VARIANTS
    budgets: Budgets = Budgets()


PLAIN_RULES: Final = Rules()
MORE_RULES: Final = Rules(Variant(more=OVERFLOW + BURST), MORE_VARIANTS, WIDE_BUDGETS)
YEAR_RULES: Final = Rules(Variant(), (*VARIANTS, *VARIANTS, Variant(more=OVERFLOW), Variant(more=BURST)))
"""With overflow or burst at times only: the one has sockets read twice a second, the other keeps classes for 60 s."""

INVALID: Final = (
    "cap: 1mbit\ncap: 2mbit\n",
    "limit: fast\n",
    "cap: 30mbit\nlimit: 20mbit\n",
    "\tcap: 1mbit\n",
    "budgets: 3\n",
)
"""What is no network file, in place of that of `lte` or behind its name."""


def address(network: str, client: int) -> str:
    """A client's address in a network: every fifth client has IPv6."""
    third = {"lte": 1, "wifi": 2, "satellite": 4}[network]
    if client % 5 == 4:
        return f"fd00:{third}:0:{client + 1:x}::1"
    return f"10.{third}.{client // 250}.{client % 250 + 1}"


class Files:
    """The files of a configuration in a directory. `variant` is what they say now, of all `variants`.

    It `has_more_rules` if there are bounds of healthy paths, overflows and bursts.
    """

    def __init__(self, directory: Path, clients: int, zone: str, *, wait_for_clock: bool, rules: Rules) -> None:
        self.path = directory / "mptcp-throttle.yaml"
        self._directory, self._clients = directory, clients
        (directory / "networks.d").mkdir()
        (directory / "clients.d").mkdir()
        words = {False: "false", True: "true"}
        text = _SERVICE.format(directory=directory, zone=zone, wait_for_clock=words[wait_for_clock])
        self.path.write_text(text, encoding="utf-8")
        self.has_more_rules = rules is not PLAIN_RULES
        self.variants, self._budgets = rules.variants, rules.budgets
        wifi = _WIFI + (_HEALTHY if self.has_more_rules else "")
        (directory / "networks.d/wifi.yaml").write_text(wifi, encoding="utf-8")
        satellite = _SATELLITE.format(week=10 + clients)
        (directory / "networks.d/satellite.yaml").write_text(satellite, encoding="utf-8")
        for number in range(min(DEVICES, clients)):
            rates = ", cap: 600kbit" if number == 0 else ""
            text = _DEVICE.format(number=number, lte=address("lte", number), wifi=address("wifi", number), rates=rates)
            (directory / f"clients.d/phone-{number}.yaml").write_text(text, encoding="utf-8")
        self.write(rules.first)

    def write(self, variant: Variant) -> None:
        """Let them say this."""
        self.variant = variant
        text = _LTE.format(
            cap=variant.cap,
            limit=variant.limit,
            starts=variant.starts,
            more=variant.more,
            month=self._budgets.month * self._clients,
            day=self._budgets.day,
            rolling=self._budgets.rolling,
        )
        (self._directory / "networks.d/lte.yaml").write_text(text, encoding="utf-8")

    def break_(self, text: str) -> None:
        """Let them be no configuration."""
        (self._directory / "networks.d/lte.yaml").write_text(f"name: lte\n{text}", encoding="utf-8")

    def load(self) -> Config:
        """The configuration. Raises ConfigError."""
        return load_config(self.path)


def is_free(network: str, at: float, zone: tzinfo | None) -> bool:
    """Whether what a network carries at a time, in seconds since the epoch, is in no budget."""
    if network != "lte":
        return False
    local = _minute(int(at // 60), zone)
    return _FREE_FROM <= local.hour * 60 + local.minute < _FREE_UNTIL


def is_weekend(at: float, zone: tzinfo | None) -> bool:
    """Whether the second window of `lte` holds, if the first does not."""
    return _minute(int(at // 60), zone).weekday() >= _WEEKEND


@lru_cache(16)
def _minute(number: int, zone: tzinfo | None) -> datetime:
    return datetime.fromtimestamp(60 * number, zone)
