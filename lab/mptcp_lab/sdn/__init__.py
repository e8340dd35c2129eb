"""A network of Open vSwitches, whose controller chooses a path for each subflow."""
