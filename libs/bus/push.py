"""Sends at once what was published: nats-py leaves it to a task, a turn of the event loop later.

To be called after the last of what is published in one turn, where somebody waits for it.
"""

from nats.aio.client import Client


def push(connection: Client) -> None:
    """Hands the transport what waits for it. While that still holds something, nats-py's task does so, and waits for room.
    Of no effect on a connection that is away, or none of nats-py's."""
    transport = getattr(connection, "_transport", None)
    writer = getattr(transport, "_io_writer", None)
    if transport is None or writer is None or not connection.is_connected or not connection._pending:
        return
    if not writer.transport.get_write_buffer_size():
        pending, connection._pending, connection._pending_data_size = connection._pending, [], 0
        transport.writelines(pending)
