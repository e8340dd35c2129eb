"""`mptcp-throttled` with changed constants: `python -m mptcp_lab.tuned_daemon TUNING ARGUMENT...`.

TUNING is a JSON object that maps `module:constant` to a number. The daemon is the real one, with its arguments.
"""

from __future__ import annotations

import importlib
import json
import sys

from mptcp_throttled import main as service


def tune(constant: str, value: float) -> None:
    """Set a module's constant. Raises AttributeError if it does not exist."""
    module_name, _, name = constant.partition(":")
    module = importlib.import_module(module_name)
    getattr(module, name)
    setattr(module, name, value)


if __name__ == "__main__":
    for _constant, _value in json.loads(sys.argv[1]).items():
        tune(_constant, _value)
    sys.exit(service.main(sys.argv[2:]))
