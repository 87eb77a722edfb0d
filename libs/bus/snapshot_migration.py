"""Migrates snapshots from the one bucket that all services once shared to a bucket per service, which no other may write.

`baton provision` runs it. The old snapshots cannot be dropped: a reader whose ledger is archived needs its snapshot.
"""

import logging
from base64 import urlsafe_b64decode

from nats.js import JetStreamContext
from nats.js.api import ObjectMeta, StreamInfo
from nats.js.errors import BadObjectMetaError, NotFoundError, ObjectNotFoundError

from libs.bus.table import SNAPSHOTS_BUCKET, snapshots_bucket

log = logging.getLogger("baton.streams")

_OLD = f"OBJ_{SNAPSHOTS_BUCKET}"


async def make_room(js: JetStreamContext, wanted_bytes: int) -> None:
    """Shrinks what the old bucket reserves, to its content or to `wanted_bytes` where that is more: the new ones need space."""
    info = await _old(js)
    if info is None:
        return
    enough = max(wanted_bytes, info.state.bytes)
    if (info.config.max_bytes or 0) > enough:
        await js.update_stream(info.config.evolve(max_bytes=enough))


async def move(js: JetStreamContext) -> None:
    """Moves each service's snapshots into its own bucket, unless a newer one is there. It may be repeated: an object is removed
    from the old bucket once it is in the new one. Raises nats errors."""
    info = await _old(js)
    if info is None or not info.state.messages:
        return
    prefix = f"$O.{SNAPSHOTS_BUCKET}.M."
    entries = (await js.stream_info(_OLD, subjects_filter=f"{prefix}>")).state.subjects or {}
    old = await js.object_store(SNAPSHOTS_BUCKET)
    for name in sorted(urlsafe_b64decode(subject.removeprefix(prefix)).decode() for subject in entries):
        _, _, rest = name.partition("/")
        bucket = snapshots_bucket(rest.rpartition("/")[0])
        if bucket == SNAPSHOTS_BUCKET:
            continue
        try:
            kept = await old.get(name)
        except (ObjectNotFoundError, BadObjectMetaError):
            continue  # it was removed before
        own = await js.object_store(bucket)
        try:
            await own.get_info(name)
        except NotFoundError:
            await own.put(name, kept.data or b"", ObjectMeta(name=name, description=kept.info.description))
            log.info("snapshot %s was moved to %s", name, bucket)
        await old.delete(name)


async def _old(js: JetStreamContext) -> StreamInfo | None:
    try:
        return await js.stream_info(_OLD)
    except NotFoundError:
        return None
