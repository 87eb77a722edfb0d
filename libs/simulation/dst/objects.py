"""nats-py's object store, except that time and names are the simulation's and an object is read by direct gets."""

import base64
import io
import json
from hashlib import sha256
from typing import Any

from nats.js import api
from nats.js.errors import DigestMismatchError, NotFoundError, ObjectNotFoundError
from nats.js.object_store import ObjectStore

_CHUNK = 128 * 1024


class SimObjects(ObjectStore):
    """Writes and describes as the real one does, message for message; the chunks of what is replaced are purged last."""

    async def put(self, name: str, data: Any, meta: api.ObjectMeta | None = None) -> Any:
        about = meta or api.ObjectMeta(name=name)
        try:
            before = await self.get_info(name)
        except NotFoundError:
            before = None
        nuid = self._js._nc._nuid.next().decode()
        chunks = [data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK)]
        for chunk in chunks:
            await self._js.publish(f"$O.{self._name}.C.{nuid}", chunk)
        digest = base64.urlsafe_b64encode(sha256(data).digest()).decode()
        info = {
            "name": name,
            "description": about.description,
            "bucket": self._name,
            "nuid": nuid,
            "size": len(data),
            "chunks": len(chunks),
            "digest": f"SHA-256={digest}",
        }
        subject = f"$O.{self._name}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"
        await self._js.publish(subject, json.dumps(info).encode(), headers={"Nats-Rollup": "sub"})
        if before is not None:
            await self._js.purge_stream(self._stream, subject=f"$O.{self._name}.C.{before.nuid}")
        return api.ObjectInfo.from_response(info)

    async def list(self, ignore_deletes: bool = False) -> list[Any]:
        found: list[Any] = []
        seq = 1
        while True:
            try:
                message = await self._js.get_msg(
                    self._stream, seq=seq, subject=f"$O.{self._name}.M.>", next=True, direct=True
                )
            except NotFoundError:
                break
            info = api.ObjectInfo.from_response(json.loads(message.data or b""))
            if not (ignore_deletes and info.deleted):
                found.append(info)
            seq = (message.seq or 0) + 1
        if not found:
            raise NotFoundError
        return found

    async def get(
        self, name: str, writeinto: io.BufferedIOBase | None = None, show_deleted: bool | None = False
    ) -> Any:
        info = await self.get_info(name, show_deleted)
        data = b""
        seq = 1
        subject = f"$O.{self._name}.C.{info.nuid}"
        while len(data) < (info.size or 0):
            try:
                message = await self._js.get_msg(self._stream, seq=seq, subject=subject, next=True, direct=True)
            except NotFoundError as error:
                raise ObjectNotFoundError from error
            data += message.data or b""
            seq = (message.seq or 0) + 1
        if base64.urlsafe_b64decode((info.digest or "").partition("=")[2]) != sha256(data).digest():
            raise DigestMismatchError
        result = self.ObjectResult(info=info)
        if writeinto is not None:
            writeinto.write(data)
        else:
            result.data = data
        return result
