"""What `benchmarks/first-seconds` makes of its downloads."""

import pytest

from mptcp_lab.benchmarks.first_seconds import WORLDS, Cell, Fetched, _lengths, ideal_seconds, rows
from mptcp_lab.benchmarks.stock_kernels import missing
from mptcp_lab.topology import WIFI

CELL = Cell("native", "lab", "bbr", (0, 0))


def test_ratio_of_a_download_is_to_the_median_of_wifi_alone() -> None:
    times = {
        ("wifi", "1"): [Fetched(seconds, 0) for seconds in (1.0, 2.0, 9.0)],
        ("steered", "1"): [Fetched(seconds / 10, 500) for seconds in range(100, 0, -1)],
    }
    kernel, wifi = rows(CELL, times)
    assert (wifi["median_ratio"], wifi["max_ratio"]) == (1.0, 4.5)
    assert [kernel[name] for name in ("runs", "median", "p90", "p99", "max")] == [100, 5.05, 9.0, 9.9, 10.0]
    assert [kernel[f"{name}_ratio"] for name in ("p90", "p99", "max")] == [4.5, 4.95, 5.0]
    assert kernel["ethernet_bytes"]["max"] == 500
    assert (kernel["world"], kernel["delay"], kernel["variant"]) == ("lab", (0, 0), "steered")


def test_ratio_of_a_late_download_is_to_its_own_ideal() -> None:
    (row,) = rows(CELL, {("kernel", "late"): [Fetched(3.0, 0, 2.0), Fetched(4.0, 0, 2.5)]})
    assert (row["median"], row["median_ratio"], row["max_ratio"]) == (3.5, 1.55, 1.6)


def test_rows_are_in_the_order_of_sizes() -> None:
    times = {("kernel", size): [Fetched(1.0, 0)] for size in ("video", "late", "page", "10", "3", "0.1")}
    assert [row["size"] for row in rows(CELL, times)] == ["0.1", "3", "10", "page", "late", "video"]


@pytest.mark.parametrize(
    ("size", "lengths"),
    [
        ("3", [3_000_000]),
        ("6x0.3", [300_000] * 6),
        ("late", [10_000_000]),
        ("0.1", [100_000]),
        ("video", [2_000_000] * 10),
    ],
)
def test_size_says_how_many_documents_are_fetched_at_once(size: str, lengths: list[int]) -> None:
    assert _lengths(size) == lengths
    assert len(_lengths("page")) == 30


def test_ideal_is_all_of_ethernet_then_all_of_wifi_and_the_cap() -> None:
    payload = 1428 / 1514
    second_over_ethernet, second_over_both = 1.25e6 * payload, 7.125e6 * payload
    size = round(second_over_ethernet + 2 * second_over_both)
    assert ideal_seconds(size, 1.0, WIFI.rate) == pytest.approx(3.0, abs=1e-6)


def test_worlds_need_what_not_every_kernel_has() -> None:
    assert WORLDS["lab"].needs == ()
    assert WORLDS["noqueue"].needs == ()
    assert WORLDS["fq_codel"].needs == ("fq_codel",)
    assert WORLDS["origin-cubic"].needs == ("cubic",)


def test_stock_kernels_have_all_that_a_cell_may_need() -> None:
    assert missing("debian-6.12", (5, 15), "cubic", "fq_codel") == ""
