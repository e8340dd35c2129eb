"""Bring the kernel from the state it is in to the desired one."""
