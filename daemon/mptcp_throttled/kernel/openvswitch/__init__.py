"""The back end `ovs`: caps as queues of an Open vSwitch port, and OpenFlow rules that lead subflows to them."""
