"""The kernel's own MPTCP selftests on a stock kernel, once without our services and once beside them.

In the order of what happens:

    sources     unpacks the selftests from Debian's source package of the guest's kernel, and compiles their programs
    inside      runs the scripts in the guest
    beside      has our services run in each network namespace in which a selftest listens
    results     reads what the scripts have printed
    comparison  the tests that passed without our services, and did not beside them
"""
