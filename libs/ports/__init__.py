"""What services need of the world: a log and messages, stores, a node, a clock. They do not know which world they have.

In production there is one world, the real one, and nothing here is between a service and it. A test may put a process
on a `Host`, which then answers in place of the machine: that is how the simulation (`libs.simulation.dst`) runs the
services as they are, in one process and in virtual time.
"""

from libs.ports.host import Host, failpoint, on_host, present_host

__all__ = ["Host", "failpoint", "on_host", "present_host"]
