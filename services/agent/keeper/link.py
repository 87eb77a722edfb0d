"""One connection of an agent, on the keeper's side."""

import socket

from services.agent.keeper import wire


class AgentLink:
    """A connection of an agent. It says `hello` first; nothing else is heard before."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reader = wire.Reader()
        self.out = bytearray()
        self.first = 0
        """So much of what it is to hear is no more than what it asked for at first, however large that is."""
        self.greeted = self.waits = False
