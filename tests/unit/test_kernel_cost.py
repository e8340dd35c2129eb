"""What `benchmarks/kernel-cost` computes from the kernel's accounts."""

from mptcp_lab.benchmarks.kernel_cost import (
    Used,
    costs_of_downloads,
    costs_of_joins,
    costs_of_transfer,
    costs_of_uploads,
    program_runs,
)

DESCRIPTOR = (
    "pos:\t0\nflags:\t02000002\nprog_type:\t{}\nprog_tag:\tb0b1\nprog_id:\t{}\nrun_time_ns:\t{}\nrun_cnt:\t{}\n"
)
SOCKOPS, TRACING, SOCKET_FILTER = 13, 26, 1


def test_runs_of_a_program_with_two_descriptors_count_once() -> None:
    descriptor = DESCRIPTOR.format(SOCKOPS, 7, 5000, 10)
    assert program_runs([descriptor, "pos:\t0\nflags:\t02\n", descriptor]) == {"callbacks": 10, "callbacks_ns": 5000}


def test_runs_of_all_iterators_are_summed_and_of_other_programs_left_out() -> None:
    descriptors = [
        DESCRIPTOR.format(TRACING, 1, 300, 1),
        DESCRIPTOR.format(TRACING, 2, 400, 2),
        DESCRIPTOR.format(SOCKET_FILTER, 3, 9, 9),
        "prog_type:\t13\nlink_type:\t3\nprog_id:\t4\n",
    ]
    assert program_runs(descriptors) == {"iterators": 3, "iterators_ns": 700}


def test_costs_of_joins_are_those_of_one_connection_and_of_one_call() -> None:
    used = Used(
        joins=100,
        sniffer_ns=20_000_000,
        daemon_ns=40_000_000,
        callbacks=2400,
        callbacks_ns=2_400_000,
        iterators=2,
        iterators_ns=10_000_000,
        elapsed_ns=1_000_000_000,
    )
    assert costs_of_joins(used) == {
        "sniffer_ms": 0.2,
        "daemon_ms": 0.4,
        "both_ms": 0.6,
        "callbacks": 24.0,
        "callback_ns": 1000,
        "callbacks_us": 24.0,
        "iterator_ns_per_socket": 5_000_000,
        "iterators_percent_of_core": 1.0,
    }


def test_costs_of_a_transfer_without_programs_are_zero() -> None:
    used = Used(packets=1000, sniffer_ns=1_000_000, daemon_ns=10_000_000, elapsed_ns=1_000_000_000)
    assert costs_of_transfer(used, 2e9) == {
        "callback_ns": 0,
        "callbacks_per_packet": 0.0,
        "ns_per_packet": 0.0,
        "ms_per_gigabyte": 0.0,
        "packet_program_ns": 0,
        "packet_programs_ns_per_packet": 0.0,
        "packet_programs_ms_per_gigabyte": 0.0,
        "sniffer_percent_of_core": 0.1,
        "daemon_percent_of_core": 1.0,
    }


def test_costs_of_a_transfer_are_per_packet_and_per_gigabyte() -> None:
    used = Used(packets=1000, callbacks=500, callbacks_ns=400_000, elapsed_ns=1_000_000_000)
    costs = costs_of_transfer(used, 2e9)
    assert (costs["callbacks_per_packet"], costs["ns_per_packet"], costs["ms_per_gigabyte"]) == (0.5, 400.0, 0.2)


def test_costs_of_uploads_are_those_of_each_packet() -> None:
    used = Used(
        packets=1000,
        packet_programs=600,
        packet_programs_ns=120_000,
        sniffer_ns=1_000_000,
        daemon_ns=5_000_000,
        elapsed_ns=1_000_000_000,
    )
    assert costs_of_uploads(used) == {
        "program_calls_per_packet": 0.6,
        "ns_per_call": 200,
        "ns_per_packet": 120.0,
        "sniffer_percent_of_core": 0.1,
        "daemon_percent_of_core": 0.5,
    }


def test_costs_of_downloads_are_those_of_a_complete_download() -> None:
    used = Used(
        downloads=50,
        downloading_ns=2_500_000_000,
        joins=49,
        sniffer_ns=10_000_000,
        daemon_ns=5_000_000,
        proxy_ns=50_000_000,
    )
    assert costs_of_downloads(used) == {
        "downloads": 50,
        "reached_per_second": 20.0,
        "joins": 49,
        "sniffer_ms": 0.2,
        "daemon_ms": 0.1,
        "proxy_ms": 1.0,
    }
