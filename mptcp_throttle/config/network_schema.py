"""What files of access networks and of devices may contain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, PlainValidator

from mptcp_throttle.config.subnets import parse_prefix, parse_subnet
from mptcp_throttle.config.validation import (
    Flag,
    Name,
    RateOrNull,
    Section,
    each_once,
    is_name,
    list_of,
    mapping_of,
    one_of,
    parsed_by,
    text_that,
    whole,
)
from mptcp_throttle.config.yaml_file import KeyPath
from mptcp_throttle.model import (
    AccessNetwork,
    Budget,
    ClientPrefix,
    Counting,
    Device,
    Direction,
    Every,
    Health,
    Network,
    Per,
    RateKind,
    Stage,
    Window,
)
from mptcp_throttle.units import Rate, parse_burst, parse_duration, parse_share, parse_volume
from mptcp_throttle.when import WEEKDAYS, When

RATE_KEYS: Final[dict[RateKind, KeyPath]] = {
    RateKind.CAP: ("cap",),
    RateKind.LIMIT: ("limit",),
    RateKind.UPLINK_CAP: ("uplink", "cap"),
    RateKind.UPLINK_LIMIT: ("uplink", "limit"),
}
"""The keys of a network file."""

_UNLIMITED: Final = "unlimited"
_MAX_WINDOWS: Final = 64
_MAX_BUDGETS: Final = 8
_MONTH_DAYS: Final = 31
_MAX_STAGES: Final = 8
_MAX_ADDRESSES: Final = 64
MAX_DEVICE_NETWORKS: Final = 64


def _replacing_rate(text: str) -> Rate | None:
    try:
        return None if text == _UNLIMITED else Rate.parse(text)
    except ValueError as error:
        raise ValueError(f"{error}; or {_UNLIMITED}") from error


def _start(value: object) -> int | str:
    if value in WEEKDAYS or (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MONTH_DAYS):
        return value
    raise ValueError(f"allowed: a day of the month from 1 to {_MONTH_DAYS}, or of the week, such as Mon; or null")


def _budget_per(value: object) -> Per:
    if value not in (Per.NETWORK, Per.CLIENT):
        raise ValueError("allowed: network, client")
    return Per(str(value))


def _stages(value: object) -> object:
    stages = [value] if isinstance(value, dict) else value
    if not isinstance(stages, list) or not 1 <= len(stages) <= _MAX_STAGES:
        raise ValueError(f"allowed: a mapping with cap, limit or uplink, or a list of 1 to {_MAX_STAGES} such stages")
    return stages


class ClientPrefixSection(Section):
    """How many leading bits the addresses of one client have in common."""

    ipv4: Annotated[int, whole(8, 32)] = 32
    ipv6: Annotated[int, whole(32, 128)] = 64


class UplinkSection(Section):
    """The rates from the clients."""

    cap: RateOrNull = None
    limit: RateOrNull = None


class RatesSection(Section):
    """The rates of an access network."""

    cap: RateOrNull = None
    limit: RateOrNull = None
    uplink: UplinkSection = UplinkSection()

    @property
    def rates(self) -> dict[RateKind, Rate]:
        """The configured rates."""
        values = self.cap, self.limit, self.uplink.cap, self.uplink.limit
        return {kind: rate for kind, rate in zip(RATE_KEYS, values, strict=True) if rate is not None}


ReplacingRate = Annotated[Rate | None, parsed_by(_replacing_rate, or_null=True)] | None


class ReplacingUplinkSection(Section):
    """The rates from the clients in place of others."""

    cap: ReplacingRate = None
    limit: ReplacingRate = None


class ReplacingRatesSection(Section):
    """Rates in place of those of an access network: one that is absent stays as it is; null is unlimited."""

    cap: ReplacingRate = None
    limit: ReplacingRate = None
    uplink: ReplacingUplinkSection = ReplacingUplinkSection()

    @property
    def rates(self) -> dict[RateKind, Rate | None]:
        """Those that it has."""
        sections = {Direction.DOWNLINK: self, Direction.UPLINK: self.uplink}
        keys = ((kind, sections[kind.direction], key[-1]) for kind, key in RATE_KEYS.items())
        return {kind: getattr(section, key) for kind, section, key in keys if key in section.model_fields_set}


class WindowSection(ReplacingRatesSection):
    """A window of a schedule."""

    when: Annotated[When, parsed_by(When.parse)]
    counts: Flag = True

    @property
    def window(self) -> Window:
        """When it holds, and the rates that it has."""
        return Window(self.when, self.rates, self.counts)


StageRate = Annotated[Rate, parsed_by(Rate.parse)] | None


class StageUplinkSection(UplinkSection):
    """The rates from the clients that a budget allows; null, which changes no rate, is not proposed."""

    cap: StageRate = None
    limit: StageRate = None


class StageSection(RatesSection):
    """The rates that a budget allows once a part of it is used; null changes no rate, and is not proposed."""

    cap: StageRate = None
    limit: StageRate = None
    uplink: StageUplinkSection = StageUplinkSection()
    at: Annotated[float, parsed_by(parse_share, at_least="1%")] = 1.0

    @property
    def stage(self) -> Stage:
        """The used fraction, and the rates from then on."""
        return Stage(self.at, self.rates)


class PeriodSection(Section):
    """A budget, whoever it is for; `then` is the only stage, or all of them."""

    amount: Annotated[int, parsed_by(parse_volume)]
    direction: Annotated[Counting, one_of(Counting)] = Counting.BOTH
    every: Annotated[Every, one_of(Every)] = Every.MONTH
    starts: Annotated[int | str, PlainValidator(_start)] | None = None
    warn_at: Annotated[float, parsed_by(parse_share, at_least="1%", or_null=True)] | None = 0.8
    rollover: Flag = False
    rolling: Flag = False
    then: Annotated[tuple[StageSection, ...], BeforeValidator(_stages)]

    def budget_of(self, per: Per, networks: Iterable[str] = ()) -> Budget:
        """The budget. What only together is wrong with its keys is found by `load_config`."""
        starts = self.starts if isinstance(self.starts, int) else WEEKDAYS.index(self.starts or WEEKDAYS[0])
        starts = 1 if self.every is Every.MONTH and self.starts is None else starts
        stages, kept = tuple(section.stage for section in self.then), (self.rollover, self.rolling)
        return Budget(
            self.amount, per, self.direction, self.every, starts, self.warn_at, stages, *kept, tuple(networks)
        )


class BudgetSection(PeriodSection):
    """A budget of an access network."""

    per: Annotated[Per, PlainValidator(_budget_per)] = Per.CLIENT

    @property
    def budget(self) -> Budget:
        """The budget."""
        return self.budget_of(self.per)


class DeviceBudgetSection(PeriodSection):
    """A budget of a device; without `networks`, it is for all in which the device has addresses."""

    networks: (
        Annotated[tuple[str, ...], list_of("access networks", MAX_DEVICE_NETWORKS), AfterValidator(each_once)] | None
    ) = None


class HealthSection(Section):
    """The bounds within which a path of an access network is healthy."""

    rtt: Annotated[float, parsed_by(parse_duration, at_least="1ms", or_null=True)] | None = None
    loss: Annotated[float, parsed_by(parse_share, at_least="0.1%", or_null=True)] | None = None
    rate: RateOrNull = None


Burst = Annotated[int, parsed_by(parse_burst, or_null=True)] | None


class NetworkFile(RatesSection):
    """A file in networks.d."""

    name: Name
    subnets: Annotated[tuple[Annotated[Network, parsed_by(parse_subnet)], ...], list_of("subnets", 1000)] = ()
    subnets_file: Annotated[str, text_that(bool, "a path, or null")] | None = None
    preference: Annotated[int, whole(1, 1000)]
    per: Annotated[Per, one_of(Per)] = Per.CLIENT
    client_prefix: ClientPrefixSection = ClientPrefixSection()
    provisional: Annotated[float, parsed_by(parse_duration, or_null=True)] | None = None
    healthy: HealthSection = HealthSection()
    schedule: Annotated[tuple[WindowSection, ...], list_of("windows", _MAX_WINDOWS, least=0)] = ()
    budgets: Annotated[tuple[BudgetSection, ...], list_of("budgets", _MAX_BUDGETS, least=0)] = ()
    overflow: RateOrNull = None
    burst: Burst = None
    shared: Flag = False
    proxy: Annotated[str, text_that(is_name, "the name of a proxy in mptcp-throttle.yaml, or null")] | None = None

    def with_subnets(self, subnets: Iterable[Network]) -> AccessNetwork:
        """The access network that it configures, with all its subnets, those of `subnets_file` too."""
        return AccessNetwork(
            self.name,
            tuple(subnets),
            self.preference,
            self.rates,
            self.per,
            self.provisional or 0.0,
            ClientPrefix(self.client_prefix.ipv4, self.client_prefix.ipv6),
            Health(self.healthy.rtt, self.healthy.loss, self.healthy.rate),
            tuple(section.window for section in self.schedule),
            self.proxy,
            tuple(section.budget for section in self.budgets),
            self.overflow,
            self.burst or 0,
            self.shared,
        )


class DeviceNetworkSection(ReplacingRatesSection):
    """A device in one access network."""

    addresses: Annotated[tuple[Annotated[Network, parsed_by(parse_prefix)], ...], list_of("addresses", _MAX_ADDRESSES)]


class DeviceFile(Section):
    """A file in clients.d."""

    name: Name
    networks: Annotated[dict[str, DeviceNetworkSection], mapping_of("access networks", MAX_DEVICE_NETWORKS)]
    budgets: Annotated[tuple[DeviceBudgetSection, ...], list_of("budgets", _MAX_BUDGETS, least=0)] = ()

    @property
    def device(self) -> Device:
        """The device that it configures."""
        return Device(
            self.name,
            {name: section.addresses for name, section in self.networks.items()},
            {name: rates for name, section in self.networks.items() if (rates := section.rates)},
            tuple(section.budget_of(Per.CLIENT, section.networks or self.networks) for section in self.budgets),
        )
