"""The section `fleet` of the service file: a server by which several proxies share totals."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Final

from mptcp_throttle.config.validation import Flag, Name, Section, list_of, parsed_by, text_that
from mptcp_throttle.config.yaml_file import YamlFile
from mptcp_throttle.policy_bundle.signature import PublicKey
from mptcp_throttle.units import Rate
from mptcp_throttle.valkey.server import Credentials, ServerUrl

_File = Annotated[str, text_that(os.path.isabs, "an absolute path, or null")] | None
_MAX_KEYS: Final = 4
_LINK: Final = Rate(10_000_000_000)


class FleetTlsSection(Section):
    """Files in PEM: the authority that signs the server's certificate, and the certificate and key of this proxy."""

    ca: _File = None
    certificate: _File = None
    key: _File = None


class FleetPolicySection(Section):
    """The fleet whose policies this proxy uses in place of its own files, None: of none; and who may publish them."""

    fleet: Name | None = None
    keys: Annotated[
        tuple[Annotated[PublicKey, parsed_by(PublicKey.parse)], ...], list_of("public keys", _MAX_KEYS, least=0)
    ] = ()


class FleetSection(Section):
    """The server, None: there is no fleet; the name of this proxy among the others, and how clients are named there.

    `link` is the rate of the fastest link of a proxy: none can have carried more.
    """

    url: Annotated[ServerUrl, parsed_by(ServerUrl.parse, or_null=True)] | None = None
    name: Name | None = None
    password_file: _File = None
    tls: FleetTlsSection = FleetTlsSection()
    key_file: _File = None
    share_clients: Flag = False
    link: Annotated[Rate, parsed_by(Rate.parse)] = _LINK
    policy: FleetPolicySection = FleetPolicySection()

    @property
    def credentials(self) -> Credentials:
        """How this host and the server prove each other who they are."""
        return Credentials(self.password_file, self.tls.ca, self.tls.certificate, self.tls.key)


def fleet_problems(fleet: FleetSection, file: YamlFile, *, kernel_view: bool) -> Iterator[str]:
    """What the keys of the section must be for each other, and for that of the sniffer, a line each."""
    yield from _policy_problems(fleet, file)
    if fleet.url is None:
        return
    url = f"{file.place('fleet', 'url')}: {fleet.url}"
    if not kernel_view:
        yield f"{url}: needs sniffer.kernel_view: true; allowed: null, or that too"
    if fleet.name is None:
        yield f"{url}: needs fleet.name; allowed: null, or that too"
    if fleet.key_file is None and not fleet.share_clients:
        yield f"{url}: needs fleet.key_file; allowed: null, or that too, or fleet.share_clients: true"
    if fleet.key_file is not None and fleet.share_clients:
        place = f"{file.place('fleet', 'key_file')}: {fleet.key_file}"
        yield f"{place}: has no effect with fleet.share_clients: true; allowed: one of the two"
    tls = fleet.tls
    if (tls.certificate is None) != (tls.key is None):
        alone, missing = ("certificate", "key") if tls.key is None else ("key", "certificate")
        place = f"{file.place('fleet', 'tls', alone)}: {getattr(tls, alone)}"
        yield f"{place}: needs fleet.tls.{missing}; allowed: null, or that too"
    if not fleet.url.is_encrypted and tls != FleetTlsSection():
        yield f"{url}: has no use for fleet.tls; allowed: valkeys://, or no fleet.tls"


def _policy_problems(fleet: FleetSection, file: YamlFile) -> Iterator[str]:
    name = fleet.policy.fleet
    place = f"{file.place('fleet', 'policy', 'fleet')}: {name}"
    if name is not None and fleet.url is None:
        yield f"{place}: needs fleet.url; allowed: null, or that too"
    if name is not None and not fleet.policy.keys:
        yield f"{place}: needs fleet.policy.keys; allowed: null, or these too"
