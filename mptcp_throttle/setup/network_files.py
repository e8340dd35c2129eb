"""The files of access networks: the text of proposed files, and whether they are valid beside the present files."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from mptcp_throttle.config.load import load_config, yaml_files_in
from mptcp_throttle.config.schema import NETWORKS_DIRECTORY
from mptcp_throttle.errors import ConfigError, listed
from mptcp_throttle.rpc import Json
from mptcp_throttle.setup.kept_files import NETWORK_FILES, normalized, read_present, shipped, staged
from mptcp_throttle.setup.network_groups import EXPENSIVE, Grouping, ProposedNetwork, SeenSubnet
from mptcp_throttle.units import Rate

_WIDTH: Final = 118


def network_file(network: ProposedNetwork, cap: Rate) -> str:
    """The text of the file of an access network; `cap` is the rate of an expensive network."""
    has_cap = network.preference == EXPENSIVE
    lines = [
        *_comment(
            "An access network, as `mptcp-throttle setup networks` has seen it; mptcp-throttle-network(5) explains all"
            " options. Rename it as you like: the name is in logs, and in the CLI."
        ),
        f"name: {network.name}",
        "",
        *_comment("Where clients came from. Add what else belongs to it: the longest prefix counts."),
        "subnets:",
        *(f'  - "{seen.subnet}"  # {_evidence(seen)}' for seen in network.subnets),
        "",
        *_comment(f"Preference (1 is the most preferred): {network.why_preference}."),
        f"preference: {network.preference}",
        "",
        *_comment(
            "The rate while the same connection has a live subflow on a more preferred network."
            + (" Choose what fits your contract." if has_cap else "")
        ),
        f"cap: {cap if has_cap else 'null'}",
        "",
        *_comment(f"What shares one rate. {network.why_per}."),
        f"per: {network.per}",
    ]
    return "\n".join(lines) + "\n"


def _comment(text: str) -> Iterator[str]:
    return (f"# {line}" for line in textwrap.wrap(text, _WIDTH))


def _evidence(seen: SeenSubnet) -> str:
    noun = "address" if seen.subnet.version == 4 else "/64 prefix"
    plural = noun if seen.addresses == 1 else f"{noun}es"
    return f"{seen.addresses} {plural} in {seen.connections} connection{'' if seen.connections == 1 else 's'}"


def networks_as_json(grouping: Grouping) -> Json:
    """The proposed networks with their evidence, for programs."""
    return [
        {**asdict(network), "subnets": [{**asdict(seen), "subnet": str(seen.subnet)} for seen in network.subnets]}
        for network in grouping.networks
    ]


def summary(grouping: Grouping, unrecorded: int) -> Iterator[str]:
    """What to know beside the files."""
    if all(network.preference != EXPENSIVE for network in grouping.networks):
        yield (
            "nothing is capped, since only one network has been seen"
            if len(grouping.networks) == 1
            else "nothing is capped, since it is not known which network is expensive: name it with --expensive"
            " ADDRESS, the address of a client there, and --force to replace the files"
        )
    if grouping.unassigned:
        subnets = listed((f"{seen.subnet} ({_evidence(seen)})" for seen in grouping.unassigned), most=10)
        yield f"in no network, since no connection shows to which they belong: {subnets}"
    if grouping.left_out:
        yield f"left out, as there were too many: {grouping.left_out} subnets"
    if unrecorded:
        yield f"not recorded, since there were too many connections: {unrecorded} changes"


def networks_directory(config: Path, data: Mapping[str, object]) -> Path:
    """Where the access networks of a configuration file with these options are."""
    name = data.get("networks_directory", NETWORKS_DIRECTORY)
    return config.parent / (name if isinstance(name, str) else NETWORKS_DIRECTORY)


def shipped_examples(directory: Path) -> Iterator[Path]:
    """The files of access networks that the operator has not changed since the package installed them.

    Raises UserError.
    """
    for name in NETWORK_FILES:
        present = read_present(directory / name)
        if present is not None and normalized(present) == shipped(name):
            yield directory / name


def has_own_networks(directory: Path) -> bool:
    """Whether there is a file of an access network that the operator has written. Raises UserError."""
    examples = set(shipped_examples(directory))
    return any(file not in examples for file in _network_files(directory))


def check_together(config: Path, directory: Path, texts: Mapping[str, str], without: set[Path]) -> None:
    """Load the configuration as if these files were in the directory, and the files `without` were not.

    Raises ConfigError, and UserError if temporary files cannot be written.
    """
    staying = [file for file in _network_files(directory) if file.name not in texts and file not in without]
    with staged(texts) as stage:
        files = [*staying, *(stage / name for name in texts)]
        try:
            load_config(config, sorted(files, key=lambda path: path.name))
        except ConfigError as error:
            raise ConfigError([line.replace(str(stage), str(directory)) for line in error.problems]) from error


def _network_files(directory: Path) -> list[Path]:
    """The present files; empty if there is no such directory."""
    return yaml_files_in(directory) if directory.is_dir() else []
