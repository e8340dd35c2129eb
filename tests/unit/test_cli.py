import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from config_files import SERVICE, write_config

from mptcp_throttle import service
from mptcp_throttle.cli import main, setup_commands, tables
from mptcp_throttle.cli.live import show_once
from mptcp_throttle.cli.live_view import View
from mptcp_throttle.cli.main import parser
from mptcp_throttle.errors import EX_COMMAND_LINE
from mptcp_throttle.rpc import Json

REPOSITORY = Path(__file__).parents[2]
NETWORK = "name: a\nsubnets: [10.1.0.0/24]\npreference: 1\n"
NOTHING_TO_SHOW: Json = {"connections": 0, "paused": False, "sniffer_problem": None, "errors": [], "networks": []}
CONFIG = str(REPOSITORY / "config/mptcp-throttle.yaml")


def test_check_config_shows_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", CONFIG, "check-config"]) == 0
    assert "valid: interface eth0, ports [8080], networks wifi, lte" in capsys.readouterr().out
    assert main(["--config", CONFIG, "check-config", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["format"], document["networks"]) == (1, ["wifi", "lte"])


def test_check_config_shows_ranges_of_ports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(write_config(tmp_path, SERVICE.replace("8080", "8080, 20000-29999"), a=NETWORK))
    assert main(["--config", path, "check-config"]) == 0
    assert "valid: interface eth0, ports [8080, 20000-29999], networks a" in capsys.readouterr().out
    assert main(["--config", path, "check-config", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ports"] == [8080, "20000-29999"]


def test_check_config_notes_windows_that_are_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule = "schedule: [{when: 2020-12-24, limit: 1mbit}, {when: 2099-12-24, limit: 1mbit}]\n"
    path = str(write_config(tmp_path, SERVICE, a=NETWORK + schedule))
    note = "network a: schedule: 2020-12-24 is over"
    assert main(["--config", path, "check-config"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [f"note: {note}"]
    assert main(["--config", path, "check-config", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [note]


def test_check_config_notes_overflow_above_the_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = "cap: 1mbit\nlimit: 5mbit\noverflow: 10mbit\n"
    expensive = f"name: b\nsubnets: [10.7.0.0/24]\npreference: 2\n{rules}"
    path = write_config(tmp_path, SERVICE, a=NETWORK, b=expensive)
    assert main(["--config", str(path), "check-config"]) == 0
    note = "network b: overflow: 10mbit is more than the limit 5mbit, above which no cap is raised"
    assert capsys.readouterr().out.splitlines()[1:] == [f"note: {note}"]
    write_config(tmp_path, SERVICE, a=NETWORK, b=expensive.replace("limit: 5mbit", "limit: 10mbit"))
    assert main(["--config", str(path), "check-config", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []


def test_simulate_ends_with_the_status_of_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.touch()
    expensive = "name: b\nsubnets: [10.7.0.0/24]\npreference: 2\ncap: 1mbit\noverflow: 5mbit\n"
    path = write_config(tmp_path, SERVICE, a=NETWORK, b=expensive)
    command = ["--config", str(path), "check-config", "--simulate", str(trace)]
    assert main(command) == 1
    assert capsys.readouterr().err.startswith(f"{trace}: no line was read; allowed: ")
    write_config(tmp_path, f"{SERVICE}colour: red\n", a=NETWORK, b=expensive)
    assert main(command) == os.EX_CONFIG
    (line,) = capsys.readouterr().err.splitlines()
    assert "colour: 'red': unknown key; allowed: " in line


def test_check_config_refuses_with_a_line_per_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_config(tmp_path, f"{SERVICE}colour: red\nshape: round\n", a=NETWORK)
    assert main(["--config", str(path), "check-config"]) == 78
    assert [line.split(": ")[1] for line in capsys.readouterr().err.splitlines()] == ["colour", "shape"]


def test_status_without_the_service_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_config(tmp_path, f"{SERVICE}run_directory: {tmp_path}\n", a=NETWORK)
    assert main(["--config", str(path), "status"]) == 69
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{tmp_path}/daemon/daemon.sock: no service answers")


def test_doctor_without_ss_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--config", CONFIG, "doctor"]) == os.EX_UNAVAILABLE
    assert capsys.readouterr().err == "ss: not found; it is part of iproute2\n"


@pytest.mark.parametrize("counter", ["unknown_token", "wrong_hmac", "wrong_key", "wrong_direction", "malformed"])
def test_status_counts_all_that_the_sniffer_refuses(counter: str) -> None:
    view = {"enabled": True, "problem": None, "subflows": 2}
    line = tables._capture(
        {
            "interfaces": ["eth0"],
            "captured": ["eth0"],
            "dropped": 0,
            "counters": {counter: 3, "seen": 9},
            "kernel_view": view,
        }
    )
    assert "3 segments refused" in line


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_output_that_cannot_be_written_is_one_line(
    form: list[str], unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    arguments = [sys.executable, "-c", "import sys; from mptcp_throttle.cli import main; sys.exit(main(sys.argv[1:]))"]
    arguments += ["--config", CONFIG, "check-config", *form]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (os.EX_IOERR, "standard output: No space left on device\n")
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(arguments, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize(
    "show",
    [
        lambda: tables.show_resume({"was_paused": True}),
        lambda: setup_commands.show({"files": [], "notes": ["MPTCP is off"], "next": [], "undo": []}),
        lambda: show_once(lambda _: NOTHING_TO_SHOW, View()),
    ],
    ids=["tables", "setup", "top"],
)
def test_every_table_whose_reader_has_gone_ends_with_the_documented_status(
    show: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert service.run(show) == 128 + signal.SIGPIPE


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["set-rate", "wifi", "fast"], "argument RATE: fast: is not a rate; allowed: a number with bit, kbit"),
        (["set-rate", "wifi", "none"], "gbit, from 1kbit to 100gbit, such as 1mbit; or unlimited"),
        (["set-rate", "wifi", "1m"], "to 100gbit, here 1mbit for bits, or 8mbit for bytes; or unlimited"),
        (["set-rate", "wifi", "0mbit"], "argument RATE: 0mbit: is not a usable rate; allowed: "),
        (["set-rate", "wifi", "1mbit", "--for", "5"], "argument --for: 5: is not a duration; allowed: "),
        (["set-rate", "wifi", "1mbit", "--for", "0s"], "argument --for: 0s: is zero; allowed: "),
        (["pause", "--for", "0s"], "argument --for: 0s: is zero; allowed: "),
        (["set-rate", "wifi", "9" * 400 + "mbit"], "is not a usable rate; allowed: "),
        (["setup", "--port", "0"], "argument --port: 0: allowed: a port from 1 to 65535, or a range of ports such as "),
        (["setup", "--port", "web"], "argument --port: web: allowed: a port from 1 to 65535"),
        (
            ["setup", "--server-drop-in", "../x"],
            "argument --server-drop-in: ../x: is not the name of a unit; allowed: ",
        ),
        (["setup", "networks", "--for", "0s"], "argument --for: 0s: is zero; allowed: "),
        (["setup", "networks", "--expensive", "x"], "argument --expensive: x: is not an address; allowed: "),
        (
            ["setup", "networks", "--expensive", "fe80::1%eth0"],
            "argument --expensive: fe80::1%eth0: has a zone (%eth0), and packets never have one; allowed: fe80::1",
        ),
        (["setup", "networks", "--cap", "0mbit"], "argument --cap: 0mbit: is not a usable rate; allowed: "),
        (["set-rate", "wifi"], "the following arguments are required: RATE"),
        (["frobnicate"], "argument COMMAND: invalid choice: 'frobnicate'"),
        ([], "the following arguments are required: COMMAND"),
    ],
)
def test_wrong_command_line_is_refused_with_status_2(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert line in capsys.readouterr().err


def test_setup_without_its_rights_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(service, "missing_capabilities", lambda **bits: list(bits))
    assert main(["setup", "--dry-run"]) == os.EX_NOPERM
    assert capsys.readouterr().err == "missing capability: CAP_NET_ADMIN; run as root or grant it in the unit\n"


@pytest.mark.parametrize("option", ["--interface=eth0", "--port=8080", "--server-drop-in=squid"])
def test_setup_networks_refuses_options_of_setup(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", CONFIG, "setup", option, "networks"]) == EX_COMMAND_LINE
    line = "setup networks: --interface, --port and --server-drop-in do not apply; allowed: `mptcp-throttle setup` with"
    assert capsys.readouterr().err == f"{line} them\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--json", "--force", "--dry-run", "networks"],
        ["networks", "--json", "--force", "--dry-run"],
        ["--json", "--force", "networks", "--dry-run"],
    ],
)
def test_setup_networks_takes_what_setup_takes_too(arguments: list[str]) -> None:
    options = parser().parse_args(["setup", *arguments])
    assert (options.json, options.force, options.dry_run) == (True, True, True)
    options = parser().parse_args(["setup", "networks"])
    assert (options.json, options.force, options.dry_run) == (False, False, False)


def test_setup_shows_that_its_command_is_optional(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["setup", "--help"])
    usage, _, _ = capsys.readouterr().out.partition("\n\n")
    assert usage.split()[-2:] == ["[COMMAND]", "..."]


def test_setup_networks_without_the_sniffer_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_config(tmp_path, f"{SERVICE}run_directory: {tmp_path}\n")
    assert main(["--config", str(path), "setup", "networks"]) == os.EX_UNAVAILABLE
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith(f"{tmp_path}/sniffer/sniffer.sock: no service answers")
