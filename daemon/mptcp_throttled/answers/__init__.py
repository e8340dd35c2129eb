"""What the daemon answers: RPC, metrics, and the commands of `plan`. Reads snapshots; changes go through `control`."""
