"""This proxy as one that adopts policies of a fleet; imported only where `fleet.policy.fleet` is configured."""

from __future__ import annotations

from collections.abc import Callable

from mptcp_throttle.config.schema import Config
from mptcp_throttle.policy_bundle.kept_policy import KeptPolicy, PolicyDirectory
from mptcp_throttled.answers.api import Api
from mptcp_throttled.control.policy_follower import PolicyAdoption, PolicyFollower
from mptcp_throttled.control.running_config import RunningConfig
from mptcp_throttled.vocabulary.clock import Clock


def follow_policies(
    config: Config, running: RunningConfig, load: Callable[[KeptPolicy], Config], api: Api, clock: Clock
) -> PolicyFollower:
    """The thread that adopts them; it is not started. `api` says what it has adopted."""
    section, directory = config.fleet.policy, PolicyDirectory(config.state_directory)
    adoption = PolicyAdoption(section, directory, lambda: running.config, load, api.reload, clock)
    api.policy = adoption.status
    return PolicyFollower(adoption, config.fleet)
