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
    "text", ["0", "1", "0mbit", "-1mbit", "1MB", "1Mb", "1Mibit", "1mbps", "7kbit", "33gbit", "fast", "", "nan"]
)
def test_invalid_rate_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="allowed: a number with bit, kbit, mbit or gbit"):
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
