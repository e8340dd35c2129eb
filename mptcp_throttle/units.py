"""Rates, sizes and durations: parsed from text once, numbers with units from then on."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

_RATE_UNITS: Final = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
# Only in this case: Mib is a mebibit elsewhere, and M a month in systemd.time(7).
_SIZE_UNITS: Final = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_DECIMAL_VOLUMES: Final = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_VOLUME_UNITS: Final = {**_DECIMAL_VOLUMES, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_DURATION_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SHARE_UNITS: Final = {"%": 0.01}
_NUMBER: Final = r"(\d+(?:\.\d+)?) ?"
_QUANTITY: Final = re.compile(_NUMBER + r"([A-Za-z]+|%)", re.ASCII)
# Rates as people write them. kbps and mbps are not among them: in tc(8) these are bytes.
_BITS: Final = re.compile(_NUMBER + r"(?:(?i:([kmg]?)bits?(?:/s|ps)?)|([kKMG]?)b/s|([KMG])bps)")
_BITS_OR_BYTES: Final = re.compile(_NUMBER + r"([kmg]?)(i?)(bits?)?b?(?:/s|ps)?", re.IGNORECASE)

_RATES: Final = "a number with bit, kbit, mbit or gbit, from 1kbit to 100gbit"
RATE_SYNTAX: Final = f"{_RATES}, such as 1mbit"
DURATION_SYNTAX: Final = "a number with ms, s, m, h or d, up to 3650d, such as 5s"
SHARE_SYNTAX: Final = "a number with %, up to 100%, such as 5%"
VOLUME_SYNTAX: Final = "a number with kB, MB, GB or TB (or KiB, MiB, GiB, TiB), from 1MB to 1000TB, such as 5GB"
SIZE_SYNTAX: Final = "a number with B, KiB, MiB or GiB, up to 1GiB, such as 8MiB"

BURST_SYNTAX: Final = "a number with kB or MB (or KiB, MiB), from 10kB to 100MB, such as 2MB"

MAX_BURST_SECONDS: Final = 60
"""A burst is at most what its rate carries in that time: HTB counts no longer time as unused (`mbuffer`,
net/sched/sch_htb.c)."""

MIN_BURST_SECONDS: Final = 0.04
"""A burst is more than what its rate carries in that time: so much unused rate is kept without one (CREDIT_NS,
kernel/bpf/token_bucket.h)."""

MAX_DURATION: Final = 3650 * 86400.0
"""In seconds: ten years, an arbitrary value below `threading.TIMEOUT_MAX` (292 years)."""

_MIN_RATE: Final = 10**3
_MAX_RATE: Final = 100 * 10**9
_MAX_VOLUME: Final = 1000 * 10**12
_MIN_VOLUME: Final = 10**6
_MIN_BURST: Final = 10**4
_MAX_BURST: Final = 10**8  # Open vSwitch takes bits, as an int (lib/netdev-linux.c, htb_parse_class_details__)
# A rate that is read back from HTB's 64 ns ticks must have the burst that was set.
_BURST_STEP: Final = 1000
# The only size is that of a socket buffer, which the kernel doubles and stores in an int (net/core/sock.c).
_MAX_SIZE: Final = 2**30


def not_decimal(text: str) -> str:
    """What an error says of a number in another base, or with a zero in front, which may be meant so; else nothing."""
    return "is not decimal, or has a 0 in front; " if re.fullmatch(r"0\w+(-\w+)?", text, re.ASCII) else ""


@dataclass(frozen=True, slots=True, order=True)
class Rate:
    """A rate in bits per second, a multiple of 8 from 1 kbit to 100 gbit; units are decimal as in tc(8).

    The kernel counts bytes. HTB lets no class wait longer than 60 s (`mbuffer`, net/sched/sch_htb.c), at 1 kbit for
    five full-size packets. Our programs count whole nanoseconds per KiB: at 100 gbit, 81.

    `burst` are the IP bytes that a share with this rate may carry beyond it after a quiet time; 0: none.

    Raises ValueError, with what is allowed, for other values.
    """

    bits_per_second: int
    burst: int = 0

    def __post_init__(self) -> None:
        if not _MIN_RATE <= self.bits_per_second <= _MAX_RATE or self.bits_per_second % 8:
            raise ValueError(f"is not a usable rate; allowed: {RATE_SYNTAX}")

    def __str__(self) -> str:
        for unit in ("gbit", "mbit", "kbit"):
            factor = _RATE_UNITS[unit]
            if self.bits_per_second >= factor and self.bits_per_second * 1000 % factor == 0:
                return f"{self.bits_per_second / factor:.10g}{unit}"
        return f"{self.bits_per_second}bit"

    @property
    def bytes_per_second(self) -> int:
        """The rate in bytes per second."""
        return self.bits_per_second // 8

    def with_burst(self, burst: int) -> Rate:
        """The rate with a burst of up to so many bytes, in whole kB.

        It is at most what the rate carries in `MAX_BURST_SECONDS`, and none if that is no more than the rate carries in
        `MIN_BURST_SECONDS`.
        """
        possible = min(burst, self.bytes_per_second * MAX_BURST_SECONDS) // _BURST_STEP * _BURST_STEP
        return replace(self, burst=possible if possible > self.bytes_per_second * MIN_BURST_SECONDS else 0)

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Parse `1mbit`, `1.5 Mbit`, `1Mb/s` or `1Mbps`, rounded to whole bytes/s.

        The case of bit, kbit, mbit and gbit means nothing, as in tc(8). Raises ValueError with what is allowed.
        """
        match = _BITS.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"is not a rate; allowed: {_RATES}, {_example(text)}")
        unit = next(filter(None, match.groups()[1:]), "").lower() + "bit"
        bits = parse_quantity(match[1] + unit, _RATE_UNITS, _MAX_RATE, "rate", RATE_SYNTAX)
        return cls(round(bits / 8) * 8)


def _example(text: str) -> str:
    """`here 2mbit for bits, or 16mbit for bytes` for `2m`; `such as 1mbit` for what is neither."""
    example = "such as 1mbit"
    match = _BITS_OR_BYTES.fullmatch(text.strip())
    if match is None:
        return example
    number, prefix, binary, bit = match.groups()
    factor = (1024 if binary else 1000) ** " kmg".index(prefix.lower() or " ")
    rates = []
    for noun, bits in {"bits": 1, **({} if bit else {"bytes": 8})}.items():
        with suppress(ValueError, OverflowError):
            rates.append(f"{Rate(round(float(number) * factor * bits / 8) * 8)} for {noun}")
    return f"here {', or '.join(rates)}" if rates else example


def parse_duration(text: str) -> float:
    """Parse `250ms`, `5s`, `10m`, `2h`, `1d` into seconds. Raises ValueError with what is allowed."""
    return parse_quantity(text, _DURATION_UNITS, MAX_DURATION, "duration", DURATION_SYNTAX)


def parse_share(text: str) -> float:
    """Parse `5%` into a fraction of 1. Raises ValueError with what is allowed."""
    return parse_quantity(text, _SHARE_UNITS, 1.0, "share", SHARE_SYNTAX)


def format_share(share: float) -> str:
    """`5%` of a fraction of 1."""
    return f"{100 * share:.10g}%"


def format_percentage(share: float) -> str:
    """`5.0 %` of a measured fraction of 1."""
    return f"{100 * share:.1f} %"


def parse_size(text: str) -> int:
    """Parse `8MiB` into bytes. Raises ValueError with what is allowed."""
    return round(parse_quantity(text, _SIZE_UNITS, _MAX_SIZE, "size", SIZE_SYNTAX))


def parse_volume(text: str) -> int:
    """Parse `5GB` or `500 MiB` into bytes. Raises ValueError with what is allowed."""
    volume = round(parse_quantity(text, _VOLUME_UNITS, _MAX_VOLUME, "volume", VOLUME_SYNTAX))
    if volume < _MIN_VOLUME:
        raise ValueError(f"is not a usable volume; allowed: {VOLUME_SYNTAX}")
    return volume


def parse_burst(text: str) -> int:
    """Parse `2MB` or `500kB` into bytes. Raises ValueError with what is allowed."""
    burst = round(parse_quantity(text, _VOLUME_UNITS, _MAX_BURST, "burst", BURST_SYNTAX))
    if burst < _MIN_BURST:
        raise ValueError(f"is not a usable burst; allowed: {BURST_SYNTAX}")
    return burst


def format_volume(count: int) -> str:
    """`5.02 GB` of a number of bytes, with three digits and decimal units, as carriers count."""
    unit, factor = next(
        ((unit, factor) for unit, factor in reversed(_DECIMAL_VOLUMES.items()) if count >= factor), ("B", 1)
    )
    return f"{count / factor:.4g} {unit}"


def parse_quantity(text: str, units: dict[str, int] | dict[str, float], most: float, noun: str, syntax: str) -> float:
    """Parse a number with its unit. Raises ValueError with the allowed `syntax`."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in units:
        raise ValueError(f"is not a {noun}; allowed: {syntax}")
    quantity = float(match[1]) * units[match[2]]
    if quantity > most:
        raise ValueError(f"is not a usable {noun}; allowed: {syntax}")
    return quantity
