"""In which order the data of an MPTCP connection arrive, from a capture at the receiver."""
