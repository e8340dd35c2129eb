"""Policies for a fleet: files of access networks and devices, published with a version and a signature."""
