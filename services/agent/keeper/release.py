"""Which code a keeper runs. An agent that is upgraded goes on with the keeper that it finds: what that starts is started, and
walled in, as its own release does it, and whoever reads what the walls lack should know."""

import hashlib
from functools import cache
from pathlib import Path

from services.agent.keeper.contain import PROGRAM


@cache
def code() -> str:
    """The same for the same code of the keeper and its program, as it lay here when it was first asked for."""
    digest = hashlib.sha256()
    for file in (*sorted(Path(__file__).parent.glob("*.py")), Path(PROGRAM)):
        digest.update(file.read_bytes() if file.exists() else b"")
    return digest.hexdigest()[:16]
