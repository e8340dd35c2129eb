"""The kernel state that the policy's decisions ask for."""
