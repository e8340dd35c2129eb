"""What a publisher publishes: the files of access networks and devices beside its own `mptcp-throttle.yaml`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from mptcp_throttle.config.load import local_files
from mptcp_throttle.config.text_file import read_text_file
from mptcp_throttle.config.yaml_file import read_yaml
from mptcp_throttle.errors import ConfigError
from mptcp_throttle.policy_bundle.bundle import CLIENTS, MAX_ENCODED, NETWORKS, file_name_problem

_ALLOWED: Final = "allowed in a policy: a file beside this one, or the absolute path of a file that each proxy has"


def files_to_publish(config_file: Path) -> dict[str, str]:
    """The texts of the files that a policy has, by their names there.

    Raises ConfigError for what cannot be in a policy; whether the files are valid is another question.
    """
    networks, devices = local_files(config_file)
    problems: list[str] = []
    paths = {f"{NETWORKS}/{path.name}": path for path in networks}
    for path in networks:
        paths.update(_subnets(path, problems))
    paths |= {f"{CLIENTS}/{path.name}": path for path in devices}
    problems += [f"{path}: {problem}" for name, path in paths.items() if (problem := file_name_problem(name))]
    texts = dict(_read(paths, problems))
    if problems:
        raise ConfigError(problems)
    return texts


def _subnets(network_file: Path, problems: list[str]) -> Iterator[tuple[str, Path]]:
    """The file of subnets that a network's file names, if the policy shall have it."""
    file = read_yaml(network_file)
    name = file.data.get("subnets_file")
    if not isinstance(name, str) or os.path.isabs(name):
        return
    if Path(name).name == name:
        yield f"{NETWORKS}/{name}", network_file.parent / name
    else:
        problems.append(f"{file.place('subnets_file')}: {name}: {_ALLOWED}")


def _read(paths: Mapping[str, Path], problems: list[str]) -> Iterator[tuple[str, str]]:
    for name, path in paths.items():
        try:
            yield name, read_text_file(path, MAX_ENCODED)
        except ValueError as error:
            problems.append(f"{path}: {error}")
