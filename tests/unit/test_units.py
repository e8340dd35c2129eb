from collections.abc import Callable

import pytest

from mptcp_throttle.units import Rate, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "bits", "shown"),
    [
        ("1mbit", 1_000_000, "1mbit"),
        ("1.5 mbit", 1_500_000, "1.5mbit"),
        ("800kbit", 800_000, "800kbit"),
        ("8000bit", 8_000, "8kbit"),
        ("32gbit", 32_000_000_000, "32gbit"),
        ("1kbit", 1_000, "1kbit"),
        ("7kbit", 7_000, "7kbit"),
        ("40gbit", 40_000_000_000, "40gbit"),
        ("100gbit", 100_000_000_000, "100gbit"),
        ("1Mbps", 1_000_000, "1mbit"),
        ("1Mb/s", 1_000_000, "1mbit"),
        ("1mbit/s", 1_000_000, "1mbit"),
        ("2.5 Gbps", 2_500_000_000, "2.5gbit"),
        ("800 kb/s", 800_000, "800kbit"),
        ("12 Mbits/s", 12_000_000, "12mbit"),
        ("1Mbit", 1_000_000, "1mbit"),
        ("1 GBIT", 1_000_000_000, "1gbit"),
        ("800Kbit", 800_000, "800kbit"),
        ("1000001bit", 1_000_000, "1mbit"),
        ("1234568bit", 1_234_568, "1234.568kbit"),
    ],
)
def test_rate_is_parsed_to_whole_bytes_and_printed_like_tc(text: str, bits: int, shown: str) -> None:
    rate = Rate.parse(text)
    assert rate.bits_per_second == bits
    assert str(rate) == shown
    assert Rate.parse(shown) == rate


@pytest.mark.parametrize(
    "text", ["0", "1", "0mbit", "-1mbit", "1MB", "1Mb", "1Mibit", "1mbps", "990bit", "101gbit", "fast", "", "nan"]
)
def test_invalid_rate_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="allowed: a number with bit, kbit, mbit or gbit"):
        Rate.parse(text)


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("1m", "1mbit for bits, or 8mbit for bytes"),
        ("1M", "1mbit for bits, or 8mbit for bytes"),
        ("1mbps", "1mbit for bits, or 8mbit for bytes"),
        ("1mb/s", "1mbit for bits, or 8mbit for bytes"),
        ("1.5 MB/s", "1.5mbit for bits, or 12mbit for bytes"),
        ("500kbps", "500kbit for bits, or 4mbit for bytes"),
        ("2000000", "2mbit for bits, or 16mbit for bytes"),
        ("20G", "20gbit for bits"),
        ("1Mibit", "1048.576kbit for bits"),
    ],
)
def test_rate_that_may_be_bits_or_bytes_is_refused_with_what_to_write(text: str, rates: str) -> None:
    with pytest.raises(ValueError, match=f"^is not a rate; allowed: a number with .* to 100gbit, here {rates}$"):
        Rate.parse(text)


@pytest.mark.parametrize(("text", "seconds"), [("250ms", 0.25), ("5s", 5), ("2m", 120), ("1h", 3600), ("1d", 86400)])
def test_duration_is_parsed_into_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("parse", "unit", "noun"),
    [(Rate.parse, "mbit", "rate"), (parse_duration, "d", "duration"), (parse_size, "GiB", "size")],
)
@pytest.mark.parametrize("digits", [30, 400])
def test_quantity_of_any_size_is_refused_beyond_its_maximum(
    parse: Callable[[str], object], unit: str, noun: str, digits: int
) -> None:
    with pytest.raises(ValueError, match=f"is not a usable {noun}; allowed: a number with"):
        parse("9" * digits + unit)


@pytest.mark.parametrize("text", ["5", "-5s", "5 years", "s", "5M", "5S"])
def test_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


def test_sizes_have_binary_units() -> None:
    assert parse_size("8MiB") == 8 * 1024 * 1024
    for text in ("8MB", "8Mib", "8mib"):
        with pytest.raises(ValueError, match="is not a size"):
            parse_size(text)
