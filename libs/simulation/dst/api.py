"""JetStream's API of the simulated broker: `$JS.API.<verb>...` with JSON in and out."""

import base64
import json
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from libs.simulation.dst.consumer import Consumer
from libs.simulation.dst.stream import StoredMessage, Stream, iso
from libs.simulation.dst.subjects import matches, meet

if TYPE_CHECKING:
    from libs.simulation.dst.broker import SimBrokerServer

_NO_STREAM = (404, 10059, "stream not found")
_NO_CONSUMER = (404, 10014, "consumer not found")
_NO_MESSAGE = (404, 10037, "no message found")
_CREATED = "2030-01-01T00:00:00Z"


class ApiError(Exception):
    """The API says no: code, JetStream's error code, text."""

    def __init__(self, code: int, err_code: int, text: str) -> None:
        super().__init__(text)
        self.body = {"error": {"code": code, "err_code": err_code, "description": text}}


class Api:
    """`request` answers one request, or leaves it unanswered where nats-server would."""

    def __init__(self, server: "SimBrokerServer") -> None:
        self.server = server
        self._calls: dict[str, Callable[[list[str], dict[str, Any]], Any]] = {
            "STREAM.INFO": self._stream_info,
            "STREAM.MSG.GET": self._get,
            "STREAM.MSG.DELETE": self._delete_message,
            "STREAM.CREATE": self._create_stream,
            "STREAM.UPDATE": self._update_stream,
            "STREAM.DELETE": self._delete_stream,
            "STREAM.PURGE": self._purge,
            "STREAM.NAMES": self._names,
            "STREAM.LIST": self._list,
            "CONSUMER.CREATE": self._create_consumer,
            "CONSUMER.DURABLE.CREATE": self._create_consumer,
            "CONSUMER.INFO": self._consumer_info,
            "CONSUMER.DELETE": self._delete_consumer,
            "CONSUMER.LIST": self._consumers,
            "INFO": self._account,
        }

    def request(self, subject: str, reply: str, data: bytes) -> None:
        verb = subject.removeprefix("$JS.API.")
        if verb.startswith("CONSUMER.MSG.NEXT."):
            self._next(verb.split("."), reply, data)
            return
        if verb.startswith("DIRECT.GET."):
            self._direct(verb, reply, data)
            return
        words = verb.split(".")
        for count in (2, 3, 1):
            call = self._calls.get(".".join(words[:count]))
            if call is not None:
                try:
                    answer = call(words[count:], json.loads(data) if data else {})
                except ApiError as no:
                    answer = no.body
                if reply:
                    text = answer if isinstance(answer, str) else json.dumps(answer)
                    self.server.deliver(reply, "", text.encode(), None)
                return
        if reply:
            self.server.deliver(reply, "", b"", {"Status": "503"})

    # --------------------------------------------------------------------------------------------------------- streams

    def _stream(self, name: str) -> Stream:
        stream = self.server.disk.streams.get(name)
        if stream is None:
            raise ApiError(*_NO_STREAM)
        return stream

    def _stream_info(self, rest: list[str], body: dict[str, Any]) -> str:
        stream = self._stream(rest[0])
        state = stream.state()
        if (pattern := body.get("subjects_filter")) is not None:
            held = {s: len(q) for s, q in stream.by_subject.items() if matches(pattern, s)}
            state = f'{state[:-1]}, "subjects": {json.dumps(held)}}}'
        return f'{{"config": {stream.shown()}, "created": "{_CREATED}", "state": {state}}}'

    def _create_stream(self, rest: list[str], body: dict[str, Any]) -> str:
        if rest[0] in self.server.disk.streams:
            if self.server.disk.streams[rest[0]].config == body:
                return self._stream_info(rest, {})
            raise ApiError(400, 10058, "stream name already in use with a different configuration")
        if self.server.disk.taken(body):
            raise ApiError(400, 10065, "subjects overlap with an existing stream")
        self.server.disk.add(body)
        return self._stream_info(rest, {})

    def _update_stream(self, rest: list[str], body: dict[str, Any]) -> str:
        stream = self._stream(rest[0])
        if body.get("subjects") != stream.config.get("subjects") and self.server.disk.taken(body):
            raise ApiError(400, 10065, "subjects overlap with an existing stream")
        if stream.config.get("sealed") and not body.get("sealed"):
            raise ApiError(500, 10052, "stream configuration update can not unseal a sealed stream")
        stream.config = body
        self.server.disk.changed()
        return self._stream_info(rest, {})

    def _delete_stream(self, rest: list[str], _: dict[str, Any]) -> dict[str, Any]:
        self.server.world.deleting(self._stream(rest[0]))
        for consumer in list(self.server.disk.consumers[rest[0]].values()):
            consumer.close()
        self.server.disk.remove(rest[0])
        return {"success": True}

    def _purge(self, rest: list[str], body: dict[str, Any]) -> dict[str, Any]:
        stream = self._stream(rest[0])
        if stream.config.get("deny_purge") or stream.config.get("sealed"):
            raise ApiError(500, 10110, "stream purge not permitted")
        purged = stream.purge(below=body.get("seq"), pattern=body.get("filter") or ">", keep=body.get("keep") or 0)
        return {"success": True, "purged": purged}

    def _delete_message(self, rest: list[str], body: dict[str, Any]) -> dict[str, Any]:
        stream = self._stream(rest[0])
        if stream.config.get("deny_delete") or stream.config.get("sealed"):
            raise ApiError(500, 10057, "message delete not permitted")
        if not stream.delete(int(body["seq"])):
            raise ApiError(*_NO_MESSAGE)
        return {"success": True}

    def _names(self, _: list[str], body: dict[str, Any]) -> dict[str, Any]:
        names = self._heard(body)
        return {"total": len(names), "offset": 0, "limit": 1024, "streams": names or None}

    def _list(self, _: list[str], body: dict[str, Any]) -> str:
        names = self._heard(body)
        offset = int(body.get("offset") or 0)
        found = ", ".join(self._stream_info([name], {}) for name in names[offset:])
        return f'{{"total": {len(names)}, "offset": {offset}, "limit": 256, "streams": [{found}]}}'

    def _heard(self, body: dict[str, Any]) -> list[str]:
        """Streams that listen to a subject of the pattern that is asked for."""
        wanted, disk = body.get("subject") or ">", self.server.disk
        found = disk.heard.get(wanted)
        if found is None:
            streams = disk.streams.values()
            found = [s.name for s in streams if any(meet(wanted, own) for own in s.config.get("subjects") or ())]
            disk.heard[wanted] = found
        return found

    def _account(self, _: list[str], __: dict[str, Any]) -> dict[str, Any]:
        limits = {"max_memory": -1, "max_storage": -1, "max_streams": -1, "max_consumers": -1}
        count = len(self.server.disk.streams)
        return {
            "memory": 0,
            "storage": 0,
            "streams": count,
            "consumers": 0,
            "limits": limits,
            "api": {"total": 0, "errors": 0},
        }

    # -------------------------------------------------------------------------------------------------------- messages

    def _found(self, stream: Stream, body: dict[str, Any]) -> StoredMessage | None:
        if body.get("last_by_subj"):
            return stream.last_of(body["last_by_subj"])
        if body.get("next_by_subj"):
            return stream.next_of(int(body.get("seq") or 1), body["next_by_subj"])
        return stream.messages.get(int(body.get("seq") or 0))

    def _get(self, rest: list[str], body: dict[str, Any]) -> dict[str, Any]:
        kept = self._found(self._stream(rest[0]), body)
        if kept is None:
            raise ApiError(*_NO_MESSAGE)
        message = {"subject": kept.subject, "seq": kept.seq, "time": iso(kept.time_us)}
        message["data"] = base64.b64encode(kept.data).decode()
        if kept.headers:
            lines = "".join(f"{k}: {v}\r\n" for k, v in kept.headers.items())
            message["hdrs"] = base64.b64encode(f"NATS/1.0\r\n{lines}\r\n".encode()).decode()
        return {"message": message}

    def _direct(self, verb: str, reply: str, data: bytes) -> None:
        name, _, subject = verb.removeprefix("DIRECT.GET.").partition(".")
        stream = self.server.disk.streams.get(name)
        body = json.loads(data) if data else {"last_by_subj": subject}
        deliver = self.server.deliver
        if stream is None:
            deliver(reply, "", b"", {"Status": "503"})
            return
        if "batch" in body:
            self._direct_batch(stream, reply, body)
            return
        kept = self._found(stream, body)
        if kept is None:
            deliver(reply, "", b"", {"Status": "404", "Description": "Message Not Found"})
        else:
            deliver(reply, "", kept.data, _shown(stream, kept))

    def _direct_batch(self, stream: Stream, reply: str, body: dict[str, Any]) -> None:
        deliver = self.server.deliver
        pattern = body.get("next_by_subj") or ">"
        begin = int(body.get("seq") or 1)
        since_us = _us(body["start_time"]) if body.get("start_time") else None
        found = [
            kept
            for kept in stream.after(begin - 1, () if pattern == ">" else (pattern,))
            if since_us is None or kept.time_us >= since_us
        ]
        sent = found[: int(body["batch"])]
        if not sent:
            deliver(reply, "", b"", {"Status": "404", "Description": "No Results"})
            return
        for place, kept in enumerate(sent):
            headers = _shown(stream, kept)
            headers["Nats-Num-Pending"] = str(len(found) - place - 1)
            deliver(reply, "", kept.data, headers)
        pending = {"Nats-Num-Pending": str(len(found) - len(sent)), "Nats-Last-Sequence": str(sent[-1].seq)}
        deliver(reply, "", b"", {"Status": "204", "Description": "EOB", **pending})

    # ------------------------------------------------------------------------------------------------------- consumers

    def _create_consumer(self, rest: list[str], body: dict[str, Any]) -> dict[str, Any]:
        stream = self._stream(rest[0])
        config = body["config"]
        name = config.get("name") or config.get("durable_name") or self.server.disk.next_name()
        consumers = self.server.disk.consumers[stream.name]
        if name not in consumers:
            consumers[name] = Consumer(self.server, stream, name, config)
        return {
            "type": "io.nats.jetstream.api.v1.consumer_create_response",
            "created": _CREATED,
            **consumers[name].info(),
        }

    def _consumer(self, rest: list[str]) -> Consumer:
        self._stream(rest[0])
        consumer = self.server.consumer(rest[0], rest[1])
        if consumer is None:
            raise ApiError(*_NO_CONSUMER)
        return consumer

    def _consumer_info(self, rest: list[str], _: dict[str, Any]) -> dict[str, Any]:
        return {"created": _CREATED, **self._consumer(rest).info()}

    def _delete_consumer(self, rest: list[str], _: dict[str, Any]) -> dict[str, Any]:
        self._consumer(rest).close()
        del self.server.disk.consumers[rest[0]][rest[1]]
        return {"success": True}

    def _consumers(self, rest: list[str], _: dict[str, Any]) -> dict[str, Any]:
        self._stream(rest[0])
        found = [{"created": _CREATED, **c.info()} for c in self.server.disk.consumers[rest[0]].values()]
        return {"total": len(found), "offset": 0, "limit": 256, "consumers": found}

    def _next(self, verb: list[str], reply: str, data: bytes) -> None:
        consumer = self.server.consumer(verb[3], verb[4])
        if consumer is None:
            self.server.deliver(reply, "", b"", {"Status": "503"})
            return
        consumer.ask(reply, json.loads(data) if data else {"batch": 1})


def _us(text: str) -> int:
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1e6)


def _shown(stream: Stream, kept: StoredMessage) -> dict[str, str]:
    return {
        **(kept.headers or {}),
        "Nats-Stream": stream.name,
        "Nats-Subject": kept.subject,
        "Nats-Sequence": str(kept.seq),
        "Nats-Time-Stamp": iso(kept.time_us),
    }
