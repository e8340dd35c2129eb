"""A real server of Valkey or Redis, as Debian has it, without persistence: what is killed has lost everything."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mptcp_lab.free_port import free_port
from mptcp_lab.lab_errors import LabError
from mptcp_lab.process import Process, start_process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mptcp_lab.host import Host

_NAMES: Final = (("valkey-server", "valkey-cli"), ("redis-server", "redis-cli"))
PASSWORD: Final = "of an operator"  # noqa: S105


def acl_of(proxy: str) -> str:
    """The rights that docs/explanation/fleet.md gives a proxy."""
    return (
        f"resetchannels resetkeys %R~mptcp-throttle:* %W~mptcp-throttle:lease:{proxy}:* ~mptcp-throttle:used:*"
        " ~mptcp-throttle:proxies -@all +hset +hget +hmget +hdel +hkeys +hscan +expire +ping"
        " (%W~mptcp-throttle:leases -@all +hset)"
    )


def programs() -> tuple[str, str]:
    """The server and its command line. Raises LabError if there is none."""
    for server, cli in _NAMES:
        if shutil.which(server) is not None:
            return server, cli
    raise LabError("neither valkey-server nor redis-server: lab/bootstrap installs one")


RIGHTS: Final = {name: acl_of(name) for name in ("proxies", *(f"proxy-{number}" for number in range(5)))}


@dataclass(frozen=True)
class Authority:
    """A certificate authority for servers and proxies; its files are in PEM."""

    directory: Path

    @classmethod
    def made_in(cls, directory: Path) -> Authority:
        """A new authority, whose files are in `directory`."""
        directory.mkdir(parents=True, exist_ok=True)
        made = cls(directory)
        _openssl(
            "req", "-x509", *_NEW_KEY, "-keyout", made.key("ca"), "-out", made.certificate("ca"), "-subj", "/CN=ca"
        )
        return made

    def sign(self, name: str, names: str) -> None:
        """Make a certificate and its key, with these subjectAltNames."""
        request, extensions = self.directory / f"{name}.csr", self.directory / f"{name}.ext"
        extensions.write_text(f"subjectAltName={names}\n")
        _openssl("req", *_NEW_KEY, "-keyout", self.key(name), "-out", request, "-subj", f"/CN={name}")
        signer = ("-CA", self.certificate("ca"), "-CAkey", self.key("ca"), "-CAcreateserial", "-extfile", extensions)
        _openssl("x509", "-req", "-in", request, *signer, "-out", self.certificate(name))

    def certificate(self, name: str) -> Path:
        """The file with a certificate; that of the authority itself is `ca`."""
        return self.directory / f"{name}.pem"

    def key(self, name: str) -> Path:
        """The file with the private key of a certificate."""
        return self.directory / f"{name}.key"


_NEW_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


class ValkeyServer:
    """A server on a port of loopback, or of a `host` of the lab at `address`; it does not run yet.

    `options` are of its configuration file. `operator` has all permissions; users with these `rights` need no password,
    by default `proxies` and `proxy-0` to `proxy-4`. The default user is off, as are connections without TLS if an
    `authority` has signed for `server`.
    """

    def __init__(
        self,
        directory: Path,
        *options: str,
        host: Host | None = None,
        address: str = "127.0.0.1",
        authority: Authority | None = None,
        rights: Mapping[str, str] = RIGHTS,
    ) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.port = free_port() if host is None else 6379
        self.address = address
        self._host = host
        self._authority = authority
        users = f"user default off\nuser operator on >{PASSWORD.replace(' ', '-')} ~* &* +@all\n" + "".join(
            f"user {name} on nopass {each}\n" for name, each in rights.items()
        )
        (directory / "users.acl").write_text(users)
        lines = ['save ""', f"bind {address}", f"dir {directory}", f"aclfile {directory / 'users.acl'}"]
        lines += ["enable-debug-command yes", "hz 50", *options]
        if authority is None:
            lines += [f"port {self.port}"]
        else:
            lines += ["port 0", f"tls-port {self.port}", f"tls-ca-cert-file {authority.certificate('ca')}"]
            lines += [f"tls-cert-file {authority.certificate('server')}", f"tls-key-file {authority.key('server')}"]
        self.config = directory / "server.conf"
        self.config.write_text("\n".join(lines) + "\n")
        self._process: Process | None = None

    @property
    def url(self) -> str:
        """The URL for proxies that share no rates."""
        return self.url_of("proxies")

    def url_of(self, proxy: str) -> str:
        """The URL for this proxy."""
        return f"valkey{'s' * (self._authority is not None)}://{proxy}@{self.address}:{self.port}"

    def start(self) -> None:
        """Start it; returns once it answers."""
        command = (programs()[0], self.config)
        if self._host is None:
            self._process = start_process("valkey", command, self.directory / "valkey.log")
        else:
            self._process = self._host.start("valkey", *command)
        self._process.wait_until(lambda: self.cli("PING") == "PONG", "answering", 30)

    @property
    def process(self) -> Process:
        """The running server. Raises LabError if it does not run."""
        if self._process is None:
            raise LabError("the server does not run")
        return self._process

    def stop(self) -> None:
        """End it, whether it runs or not."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            self._process = None

    def cli(self, *words: str, user: str = "operator") -> str:
        """The server's answer to a command."""
        login = ("--user", user, "--pass", PASSWORD.replace(" ", "-"), "--no-auth-warning")
        where = ("-h", self.address, "-p", str(self.port))
        tls: Sequence[str] = ()
        if self._authority is not None:
            files = {"--cacert": "ca", "--cert": "server"}
            named = [
                word for option, name in files.items() for word in (option, str(self._authority.certificate(name)))
            ]
            tls = ("--tls", *named, "--key", str(self._authority.key("server")))
        command = [programs()[1], *where, *login, *tls, *words]
        if self._host is not None:
            return self._host.run(*command, check=False).stdout.strip()
        return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60).stdout.strip()
