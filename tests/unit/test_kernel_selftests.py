"""What is read of the kernel's selftests, and which of them are different beside our services.

The files in `selftests/` were printed by Debian's kernels in a guest. They are named by the kernel and the script.
"""

from __future__ import annotations

import os
import select
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from mptcp_lab.selftests.beside import let_ask
from mptcp_lab.selftests.comparison import Row, Verdict, compare, table, totals
from mptcp_lab.selftests.results import EXIT_STATUS, Outcome, ScriptRun, outcomes, read_runs, write_runs
from mptcp_lab.selftests.sources import package_version

PRINTED = Path(__file__).parent / "selftests"

OK, FAILED, FLAKY, SKIPPED = Outcome.OK, Outcome.FAILED, Outcome.FLAKY, Outcome.SKIPPED


def ended(command: str, status: int = 0) -> ScriptRun:
    return ScriptRun(command, status, 1.5, "0.txt", 2, {"steering.as_backup": 3})


def test_runs_are_read_as_they_were_written(tmp_path: Path) -> None:
    runs = [ended("mptcp_join.sh -f"), ended("simult_flows.sh", 1)]
    write_runs(tmp_path / "runs.json", runs)
    assert read_runs(tmp_path / "runs.json") == runs


@pytest.mark.parametrize(("status", "outcome"), [(0, OK), (1, FAILED), (4, SKIPPED), (-15, FAILED)])
def test_exit_status_of_a_script_is_a_test_of_its_own(status: int, outcome: Outcome) -> None:
    assert outcomes(ended("diag.sh", status), "") == {EXIT_STATUS: outcome}


@pytest.mark.parametrize(
    ("image", "version"),
    [
        (b"\0#1 SMP PREEMPT_DYNAMIC Debian 6.12.117-1~deb12u1 (2026-11-14)\0", "6.12.117-1~deb12u1"),
        (b"\0#1 SMP PREEMPT_DYNAMIC Debian 6.1.192-2 (2026-11-16)\0", "6.1.192-2"),
        (b"\0Linux version 6.18.5 (builder@host) #1 SMP\0", None),
    ],
)
def test_version_of_the_source_package_is_in_the_banner_of_the_kernel(image: bytes, version: str | None) -> None:
    assert package_version(image) == version


@pytest.mark.parametrize(
    ("without", "beside", "verdict"),
    [
        ([OK], [OK], Verdict.SAME),
        ([OK], [FAILED], Verdict.DIFFERENT),
        ([OK], [FLAKY], Verdict.DIFFERENT),
        ([OK], [SKIPPED], Verdict.DIFFERENT),
        ([OK], [None], Verdict.DIFFERENT),
        ([OK, OK], [OK, FAILED], Verdict.DIFFERENT),
        ([FAILED], [FAILED], Verdict.NOT_JUDGED),
        ([FAILED], [OK], Verdict.NOT_JUDGED),
        ([OK, FAILED], [FAILED, FAILED], Verdict.NOT_JUDGED),
        ([SKIPPED], [SKIPPED], Verdict.NOT_JUDGED),
        ([None], [FAILED], Verdict.NOT_JUDGED),
    ],
)
def test_only_what_always_passed_without_our_services_is_judged(
    without: list[Outcome | None], beside: list[Outcome | None], verdict: Verdict
) -> None:
    assert Row("a test", tuple(without), tuple(beside)).verdict is verdict


def test_tests_that_only_one_run_came_to_are_compared_too() -> None:
    rows = compare([{"one": OK, "two": OK}], [{"one": OK}])
    assert rows == [Row("one", (OK,), (OK,)), Row("two", (OK,), (None,))]


def test_table_shows_both_ways_and_what_is_different() -> None:
    rows = compare(
        [{"one": OK, "two": OK, "three": FAILED}, {"one": OK, "two": OK, "three": OK}],
        [{"one": OK, "two": OK, "three": FAILED}, {"one": OK, "two": FAILED, "three": FAILED}],
    )
    assert [line.split(maxsplit=1)[0:2] for line in table(rows)] == [
        ["test", "without    beside"],
        ["one", "ok        ok"],
        ["two", "ok 1 of 2 ok  different"],
        ["three", "1 of 2 ok    failed  not judged"],
    ]
    assert totals(rows) == "3 tests: 1 same, 1 different, 1 not judged"


def of_file(name: str, status: int = 0) -> dict[str, Outcome]:
    """The outcomes in a file, without that of the script."""
    command = f"{name.rsplit('-')[-1]}.sh"
    found = outcomes(ended(command, status), (PRINTED / f"{name}.txt").read_text(encoding="utf-8"))
    del found[EXIT_STATUS]
    return found


def test_tap_names_each_test() -> None:
    assert of_file("debian-6.12-mptcp_join") == {"no JOIN": OK, "single subflow": OK, "multiple subflows": OK}
    sockopt = of_file("debian-6.12-mptcp_sockopt")
    assert Counter(sockopt.values()) == {OK: 11}
    assert list(sockopt)[4:8] == ["sockopt v4", "sockopt v6", "TCP_INQ: -t tcp", "TCP_INQ: -6 -t tcp"]


def test_failures_in_tap_are_told_from_those_that_may_happen() -> None:
    found = of_file("debian-6.12-simult_flows", 1)
    assert Counter(found.values()) == {OK: 8, FAILED: 1, FLAKY: 1}
    assert found["balanced bwidth - reverse direction"] is FAILED
    assert found["unbalanced bwidth"] is FLAKY


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ok 1 - mptcp_join: no JOIN # time=9234ms", {"no JOIN": OK}),
        ("not ok 2 - mptcp_join: no JOIN # time=9234ms", {"no JOIN": FAILED}),
        ("ok 3 - mptcp_join: fastclose test # SKIP time=4ms", {"fastclose test": SKIPPED}),
        ("ok 4 - simult_flows: unbalanced bwidth # IGNORE Flaky time=9ms", {"unbalanced bwidth": FLAKY}),
        ("ok 5 - mptcp_connect: loopback v4: ns1 MPTCP -> ns1 (10.0.1.1:10000) TCP # time=1ms",
         {"loopback v4: ns1 MPTCP -> ns1 (10.0.1.1:10000) TCP": OK}),
        ("ok 6 - mptcp_sockopt: mark ipv4", {"mark ipv4": OK}),
        ("1..6", {}),
    ],
)  # fmt: skip
def test_line_of_tap_has_its_outcome(line: str, found: dict[str, Outcome]) -> None:
    assert outcomes(ended("a.sh"), f"01 [FAIL]\n\nTAP version 13\n{line}\n") == found | {EXIT_STATUS: OK}


def test_checks_of_one_number_are_one_test() -> None:
    assert of_file("debian-6.1-mptcp_join") == {
        "001 no JOIN": OK,
        "004 single subflow": OK,
        "005 multiple subflows": OK,
        "009 multi subflows, with failing subflow": OK,
    }
    assert of_file("debian-6.1-several-checks-mptcp_join") == {"001 single subflow, backup": OK, "009 implicit EP": OK}


def test_lines_that_begin_with_pass_are_tests() -> None:
    assert of_file("debian-6.1-mptcp_sockopt") == {
        "all packets had packet mark set": OK,
        "SOL_MPTCP getsockopt has expected information": OK,
        "TCP_INQ cmsg/ioctl -t tcp": OK,
        "TCP_INQ cmsg/ioctl -6 -t tcp": OK,
        "TCP_INQ cmsg/ioctl -r tcp": OK,
        "TCP_INQ cmsg/ioctl -6 -r tcp": OK,
        "TCP_INQ cmsg/ioctl -r tcp -t tcp": OK,
    }


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[tuple[Path, int, Path]]:
    """A program that prints its options, with the script in its place; where requests arrive; where answers are due."""
    program, directory = tmp_path / "program", tmp_path / "directory"
    directory.mkdir()
    program.write_text('#!/bin/sh\necho "$@"\n', encoding="ascii")
    program.chmod(0o755)
    requests = let_ask(program, directory)
    yield program, requests, directory
    os.close(requests)


def test_program_that_does_not_listen_runs_at_once(asking: tuple[Path, int, Path]) -> None:
    program, requests, _ = asking
    assert subprocess.run([program, "-p", "10000"], capture_output=True, check=True).stdout == b"-p 10000\n"
    assert select.select([requests], [], [], 0) == ([], [], [])


def test_program_that_listens_waits_for_an_answer(asking: tuple[Path, int, Path]) -> None:
    program, requests, directory = asking
    with subprocess.Popen([program, "-l", "-s", "a b"], stdout=subprocess.PIPE) as process:
        assert select.select([requests], [], [], 30) == ([requests], [], [])
        assert int(os.read(requests, 100)) == process.pid
        assert process.poll() is None
        (directory / f"{process.pid}").write_text("go on\n", encoding="ascii")
        assert process.stdout is not None
        assert process.stdout.read() == b"-l -s a b\n"
