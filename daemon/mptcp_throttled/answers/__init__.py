"""The daemon's answers: RPC, metrics, and the commands of `plan`. They read snapshots; changes go through `control`."""
