import grp
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mptcp_throttle import service
from mptcp_throttle.config.schema import SocketGroup
from mptcp_throttle.errors import ConfigError, UserError

HOLDER = """
import pathlib, sys
from mptcp_throttle import service
with service.single_instance(pathlib.Path(sys.argv[1]), "x"):
    print("held", flush=True)
    sys.stdin.read()
"""


def raises(error: BaseException) -> int:
    def main() -> None:
        raise error

    return service.run(main)


def test_run_prints_user_errors_and_returns_their_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert raises(UserError("no such thing", os.EX_UNAVAILABLE)) == 69
    assert raises(ConfigError(["a.yaml:1: x", "b.yaml:2: y"])) == 78
    assert capsys.readouterr().err == "no such thing\na.yaml:1: x\nb.yaml:2: y\n"
    assert raises(KeyboardInterrupt()) == 130
    assert service.run(lambda: None) == 0


def test_second_instance_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="x is running already") as refused, service.single_instance(tmp_path, "x"):
            pass
        assert refused.value.status == os.EX_TEMPFAIL
        holder.kill()
        holder.wait()
    with service.single_instance(tmp_path, "x"):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_lock_file_made_by_root_can_be_locked_by_another_user() -> None:
    nobody = 65534
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        os.chown(directory, nobody, -1)
        before = os.umask(0o077)
        try:
            with service.single_instance(directory, "x"):
                pass
            os.seteuid(nobody)
            with service.single_instance(directory, "x"):
                pass
        finally:
            os.seteuid(0)
            os.umask(before)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_lock_file_can_be_locked_by_its_service_alone() -> None:
    mail = grp.getgrnam("mail").gr_gid
    member = ("setpriv", "--reuid", "65534", "--regid", str(mail), "--clear-groups", "flock", "--nonblock")
    before = os.umask(0)
    try:
        with tempfile.TemporaryDirectory() as name:
            Path(name).chmod(0o755)
            run, directory = Path(name) / "run", Path(name) / "run" / "x"
            with service.single_instance(directory, "x", SocketGroup("mail", "a:3")):
                pass
            modes = [stat.S_IMODE(path.stat().st_mode) for path in (run, directory)]
            assert (modes, directory.stat().st_gid) == ([0o755, 0o2750], mail)
            lock = [*member, str(directory / "x.lock"), "true"]
            held = subprocess.run(lock, stderr=subprocess.PIPE, text=True, check=False)
            assert held.returncode != 0
            assert "Permission denied" in held.stderr
    finally:
        os.umask(before)


def test_both_services_can_make_the_run_directory_at_once(tmp_path: Path) -> None:
    together = threading.Barrier(2)

    def start(name: str) -> None:
        for number in range(300):
            together.wait(30)
            with service.single_instance(tmp_path / str(number) / "run" / name, name):
                pass

    with ThreadPoolExecutor(2) as services:
        started = [services.submit(start, name) for name in ("sniffer", "daemon")]
        for future in started:
            future.result()
    assert len(list(tmp_path.glob("*/run/*/*.lock"))) == 600


def test_directory_that_cannot_be_written_or_made_is_one_line(tmp_path: Path) -> None:
    service.require_writable(tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match=r"^/proc: cannot be written: ") as refused:
        service.require_writable(Path("/proc"))
    assert refused.value.status == os.EX_NOPERM
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be opened"), service.single_instance(tmp_path / "file" / "run", "x"):
        pass


def test_missing_capabilities_are_one_line() -> None:
    # These bits are no capabilities, so no process has them.
    line = "missing capability: CAP_NONE, CAP_NEITHER; run as root or grant it in the unit"
    with pytest.raises(UserError, match=f"^{line}$") as refused:
        service.require_capabilities(CAP_NONE=63, CAP_NEITHER=62)
    assert refused.value.status == os.EX_NOPERM


def test_sighup_reloads_in_another_thread() -> None:
    script = """
import os, signal, sys, threading
from mptcp_throttle import service
reloads = []
def reload():
    reloads.append(threading.current_thread())
    reloaded.release()
reloaded = threading.Semaphore(0)
service.on_reload_signal(reload)
for _ in range(3):
    os.kill(os.getpid(), signal.SIGHUP)
    assert reloaded.acquire(timeout=10)
assert threading.main_thread() not in reloads
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stop_signal_sets_the_stop_event(number: signal.Signals) -> None:
    script = f"""
import os, threading
from mptcp_throttle import service
stop = threading.Event()
service.on_stop_signal(stop.set)
os.kill(os.getpid(), {int(number)})
assert stop.wait(10)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
