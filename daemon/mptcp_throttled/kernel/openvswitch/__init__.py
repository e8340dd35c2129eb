"""HTB as the queues of an Open vSwitch port."""
