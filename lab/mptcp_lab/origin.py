"""The origin server: nginx, serving files of random content whose digests are known."""

from __future__ import annotations

import hashlib
import random
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mptcp_lab import proxy_server

if TYPE_CHECKING:
    from pathlib import Path

    from mptcp_lab.host import Host
    from mptcp_lab.process import Process

ENDLESS: Final = 10**11
"""Bytes of a document that no client receives to its end: 3 hours at the rate of both access links."""

PORT: Final = 80
_CHUNK: Final = 2**20

_CONFIG: Final = """\
daemon off;
error_log stderr;
pid {directory}/nginx.pid;
worker_processes 1;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    server {{
        listen {port};
        listen [::]:{port};
        # A transparent proxy connects to the port that clients have asked for.
        listen {intercepted};
        listen [::]:{intercepted};
        root {documents};
        location /uploads/ {{
            dav_methods PUT;
            client_max_body_size 0;
        }}
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class Document:
    """A file of the origin server: its name, its size in bytes, and the SHA-256 of its content in hexadecimal."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Origin:
    """A running origin server, its documents, and where those are that it is receiving."""

    process: Process
    documents: Path
    arriving: Path

    @property
    def uploads(self) -> Path:
        """The directory of what clients have uploaded."""
        return self.documents / "uploads"

    def received(self) -> int:
        """Bytes of the uploads that are not complete yet."""
        size = 0
        for file in self.arriving.iterdir():
            with suppress(FileNotFoundError):  # complete by now
                size += file.stat().st_size
        return size

    def add(self, size: int) -> Document:
        """A new document of `size` random bytes; random, so that no program on the way can shrink it."""
        name = f"{size}-{len(list(self.documents.iterdir()))}.bin"
        return Document(name, size, write_random(self.documents / name, size))

    def add_zeros(self, size: int) -> str:
        """The name of a new document of `size` zeros, which takes no room and no time."""
        name = f"{size}-{len(list(self.documents.iterdir()))}.zero"
        with (self.documents / name).open("wb") as file:
            file.truncate(size)
        return name


def write_random(path: Path, size: int) -> str:
    """Make a file of `size` random bytes; their SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for start in range(0, size, _CHUNK):
            chunk = random.randbytes(min(_CHUNK, size - start))  # noqa: S311
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


def endless(origin: Origin) -> Document:
    """A new document that no client receives to its end; its digest is not known."""
    return Document(origin.add_zeros(ENDLESS), ENDLESS, "")


def start_origin(host: Host) -> Origin:
    """Start the origin server, v4 and v6; returns once it listens. Raises LabError if it does not."""
    # When Squid has to wait for a client, its receive buffer overflows now and then (nstat: TCPRcvQDrop), and BBR takes
    # the loss for a policer: 0.2 Mb/s for up to ten seconds. Reno is the one alternative every namespace may choose.
    host.sysctl({"net/ipv4/tcp_congestion_control": "reno"})
    documents = host.directory / "documents"
    uploads = documents / "uploads"
    uploads.mkdir(parents=True)
    uploads.chmod(0o777)  # nginx's workers are nobody
    config = host.directory / "nginx.conf"
    text = _CONFIG.format(directory=host.directory, documents=documents, port=PORT, intercepted=proxy_server.PORT)
    config.write_text(text, encoding="ascii")
    # -e: else nginx complains about the compiled-in log file before it has read the configuration.
    process = host.start("nginx", "nginx", "-e", "stderr", "-c", config)
    process.wait_until(lambda: host.listens(PORT), f"listening on port {PORT}")
    return Origin(process, documents, host.directory / "body")
