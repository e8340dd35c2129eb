"""The kernel state that the decisions ask for. Pure; knows classes by number, but no kernel."""
