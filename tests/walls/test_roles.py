"""Each service speaks for itself: what its role lets it say, and that this is all it needs."""

from collections.abc import Iterator

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import ObjectMeta
from nats.js.errors import APIError, ObjectNotFoundError

from libs.bus.connect import Address
from libs.bus.streams import provision
from libs.bus.table import READERS, snapshots_of
from libs.cli.launch import SERVICES as LAUNCHED
from libs.core.state.parts import SharedParts
from libs.ledger import snapshots
from libs.ledger.chain import GENESIS
from libs.ledger.snapshots import SnapshotStore
from libs.walls import roles
from libs.walls.keyring import Keyring
from schemas import subjects
from schemas.catalog import CATALOG
from tests.client.fakes import until
from tests.walls.world import broker

MAY_NOT = [
    ("admission", "baton.led.pool.v1.record.main"),
    ("history", "baton.led.pool.v1.record.main.7"),
    ("queries", "baton.in.job.v1.admitted.main"),
    ("telemetry", "baton.in.node.v1.lost.main.n1"),
    ("preemption", "baton.evt.job.v1.granted.blue"),
    ("leases", "baton.cmd.node.v1.desired.main.n1"),
    ("quota_billing", "baton.cmd.job.v1.submit.blue.ana"),
    ("history", "$JS.API.STREAM.DELETE.LEDGER-main"),
    ("admission", "$JS.API.STREAM.CREATE.MINE"),
    ("telemetry", "$JS.API.STREAM.PURGE.REQUESTS"),
    ("leases", "$SYS.REQ.CLAIMS.UPDATE"),
]


def test_every_service_has_a_role() -> None:
    assert set(LAUNCHED) == set(roles.SERVICES)
    producers = {message.producer for message in CATALOG} - {"teams", "operators", "agent"}
    assert producers <= set(roles.SERVICES)
    with pytest.raises(ValueError, match="herald"):
        roles.service_may("herald")


def test_the_ledger_is_placements_alone() -> None:
    ledger = ("baton.led.", "baton.>", "baton.*", ">")
    assert [name for name in roles.SERVICES if any(s.startswith(ledger) for s in roles.service_may(name))] == [
        "placement"
    ]


def test_every_message_has_one_service_that_may_say_it() -> None:
    """An inbox's messages come from the service that the catalogue names, and from no other."""
    for message in CATALOG:
        if message.subject.startswith(("baton.in.", "baton.evt.", "baton.led.", "baton.cmd.")):
            pattern = subjects.anyone(message.subject)
            speakers = {name for name in roles.SERVICES if pattern in roles.service_may(name)}
            assert speakers == ({message.producer} & set(roles.SERVICES)), message.type


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Keyring]]:
    with broker(tmp_path_factory.mktemp("roles")) as made:
        yield made


class Speaker:
    """A connection of one service, and what the broker refused it."""

    nats: Client

    def __init__(self) -> None:
        self.refused: list[str] = []

    @classmethod
    async def of(cls, bus: tuple[str, Keyring], service: str) -> "Speaker":
        made = cls()

        async def note(error: Exception) -> None:
            made.refused.append(str(error).lower())

        url, ring = bus
        made.nats = await nats.connect(
            url,
            error_cb=note,
            inbox_prefix=subjects.service_inbox(service),
            **Address("", ring.service(service)).options(),
        )
        return made

    async def refusals(self, asked: int) -> list[str]:
        """Once there are as many, or none is under way any more."""
        for _ in range(2):
            await self.nats.flush()
        await until(lambda: len(self.refused) >= asked)
        return [text for text in self.refused if "permissions violation" in text]


FOREIGN = {
    service: [
        message
        for message in CATALOG
        if service != message.producer and not (service == "placement" and message.subject == subjects.RECORD)
    ]
    for service in roles.SERVICES
}


@pytest.mark.parametrize("service", roles.SERVICES)
async def test_a_service_is_refused_what_is_anothers(bus: tuple[str, Keyring], service: str) -> None:
    """Every message of the catalogue that it does not send, and what stands above."""
    speaker = await Speaker.of(bus, service)
    said = {subjects.anyone(message.subject).replace("*", "x") for message in FOREIGN[service]}
    said -= {subjects.anyone(m.subject).replace("*", "x") for m in CATALOG if m.producer == service}
    said |= {subject for name, subject in MAY_NOT if name == service}
    for subject in sorted(said):
        await speaker.nats.publish(subject, b"{}")
    assert len(await speaker.refusals(len(said))) == len(said)
    await speaker.nats.close()


@pytest.mark.parametrize("service", roles.SERVICES)
async def test_a_service_hears_only_what_it_answers(bus: tuple[str, Keyring], service: str) -> None:
    speaker = await Speaker.of(bus, service)
    mine = set(roles.service_hears(service))
    foreign = {subjects.anyone(message.subject) for message in CATALOG} - mine
    foreign |= {">", "baton.>", "_INBOX.>", "_R_.>", "$JS.>", "_INBOX_operator.>", "baton.evt.>", "$KV.>"}
    foreign |= {f"{subjects.service_inbox(other)}.>" for other in roles.SERVICES if other != service}
    for subject in sorted(foreign):
        await speaker.nats.subscribe(subject)
    assert len(await speaker.refusals(len(foreign))) == len(foreign)
    before = len(speaker.refused)
    for subject in mine:
        await speaker.nats.subscribe(subject)
    await speaker.nats.request("$JS.API.INFO", b"", timeout=20)
    assert len(speaker.refused) == before
    await speaker.nats.close()


@pytest.mark.parametrize("service", roles.SERVICES)
async def test_a_service_reads_only_its_streams(bus: tuple[str, Keyring], service: str) -> None:
    """No consumer of another's stream, none of another's consumers, no single message of it, and no change of it."""
    speaker = await Speaker.of(bus, service)
    own = {
        "admission": {"REQUESTS", "INBOX-main"},
        "history": {"EVENTS"},
        "placement": {"INBOX-main"},
        "quota_billing": {"TELEMETRY"},
        "vault": {"KV_baton-secrets"},
    }.get(service, set())
    closed = {"REQUESTS", "EVENTS", "TELEMETRY", "DEAD", "INBOX-main", "KV_baton-cursors", "KV_baton-secrets"} - own
    tried = [
        f"$JS.API.CONSUMER.{verb}" for stream in closed for verb in (f"CREATE.{stream}", f"CREATE.{stream}.mine.>")
    ]
    tried += [f"$JS.API.CONSUMER.DELETE.{stream}.admission" for stream in closed]
    tried += [f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.mine" for stream in {*closed, *own}]
    tried += [f"$JS.API.CONSUMER.MSG.NEXT.{stream}.admission" for stream in closed]
    tried += [f"$JS.API.STREAM.MSG.GET.{stream}" for stream in closed - {"KV_baton-cursors"}]
    direct = {"quota_billing": {"REQUESTS"}, "telemetry": {"REQUESTS"}, "admission": {"EVENTS"}}.get(
        service, set()
    ) | own
    tried += [f"$JS.API.DIRECT.GET.{stream}" for stream in {"REQUESTS", "EVENTS", "DEAD", "LEDGER-main"} - direct]
    changing = ("DELETE", "UPDATE", "CREATE", "MSG.DELETE", "RESTORE", "SNAPSHOT")
    tried += [f"$JS.API.STREAM.{verb}.{stream}" for verb in changing for stream in ("REQUESTS", "EVENTS", "DEAD")]
    tried += [f"$JS.API.STREAM.{verb}.LEDGER-main" for verb in changing if service != "placement"]
    tried += [
        "$JS.API.STREAM.PURGE.DEAD",
        "$JS.API.STREAM.PURGE.KV_baton-cursors",
        "$KV.baton-secrets.x.y",
        "$JS.API.STREAM.MSG.DELETE.LEDGER-main",
    ]
    tried += [
        "$JS.API.META.LEADER.STEPDOWN",
        "$JS.API.ACCOUNT.PURGE.x",
        "$SYS.REQ.SERVER.PING",
        "$JS.ACK.DEAD.x.1.1.1.1.1",
    ]
    others = [other for other in roles.SERVICES if other != service]
    tried += [f"$KV.baton-cursors.{other}.x" for other in others] + ["$KV.baton-cursors.x"]
    tried += ["$KV.baton-readers.main.older.h-1-x", *(f"$KV.baton-readers.main.{other}.h-1-x" for other in others)]
    tried += ["$KV.baton-cursors.ledger-format.main"] if service != "placement" else []
    for bucket in ("baton-snapshots", *map(snapshots_of, others)):
        tried += [f"$O.{bucket}.M.x", f"$O.{bucket}.C.x", f"$JS.API.STREAM.PURGE.OBJ_{bucket}"]
        tried += [f"$JS.API.CONSUMER.CREATE.OBJ_{bucket}", f"$JS.API.STREAM.MSG.GET.OBJ_{bucket}"]
    tried = sorted(set(tried))
    for subject in tried:
        await speaker.nats.publish(subject, b"{}")
    refused = await speaker.refusals(len(tried))
    assert len(refused) == len(tried), [s for s in tried if not any(f'"{s.lower()}"' in text for text in refused)]
    await speaker.nats.close()


@pytest.mark.parametrize("service", ["placement", "history", "queries", "quota_billing"])
async def test_a_service_keeps_its_own_snapshots(
    bus: tuple[str, Keyring], service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the store's own way; it replaces them, and finds them again, also what several share, and removes that."""
    monkeypatch.setattr(snapshots, "_UNNAMED_S", 0.0)
    speaker = await Speaker.of(bus, service)
    store = SnapshotStore(speaker.nats.jetstream(), "main")
    for text in (b"one", b"two", b"three", b"four"):
        shared = SharedParts(f"shared-{text.decode()}", lambda text=text: [text])
        await store.save(READERS[service][0], 1, GENESIS, 0, [text, shared])
    found = await store.load(READERS[service][0], 1, list)
    assert found is not None
    assert found.value in ([b"two"] * 2, [b"four"] * 2)
    infos = await (await speaker.nats.jetstream().object_store(snapshots_of(service))).list(ignore_deletes=True)
    assert len(infos) == 4
    assert speaker.refused == []
    await speaker.nats.close()


async def test_nobody_empties_a_bucket_by_a_key_of_its_own(bus: tuple[str, Keyring]) -> None:
    """A rollup of `all` is a header of any message, and would remove every other key of the stream."""
    placement, leases = await Speaker.of(bus, "placement"), await Speaker.of(bus, "leases")
    await placement.nats.jetstream().publish("$KV.baton-cursors.placement.x", b"kept")
    with pytest.raises(APIError, match="rollup"):
        await leases.nats.jetstream().publish("$KV.baton-cursors.leases.x", b"", headers={"Nats-Rollup": "all"})
    kept = await placement.nats.jetstream().key_value("baton-cursors")
    assert (await kept.get("placement.x")).value == b"kept"
    for speaker in (placement, leases):
        await speaker.nats.close()


async def test_an_operator_moves_what_one_bucket_had_of_all(bus: tuple[str, Keyring]) -> None:
    """`baton provision` on a broker from before each service had its own: nothing is lost, and what is newer stays."""
    url, ring = bus
    admin = await nats.connect(url, **Address("", ring.service()).options())
    js = admin.jetstream()
    await js.update_stream((await js.stream_info("OBJ_baton-snapshots")).config.evolve(max_bytes=64 << 20))
    old, own = await js.object_store("baton-snapshots"), await js.object_store(snapshots_of("telemetry"))
    about = '{"seq": 0, "hash": "", "position": 0, "version": 1}'
    for name in ("main/telemetry/a", "main/telemetry/b", "main/x/a"):
        await old.put(name, b"old", ObjectMeta(name=name, description=about))
    await own.put("main/telemetry/b", b"new", ObjectMeta(name="main/telemetry/b", description=about))
    options = Address("", ring.operator()).options()
    operator = await nats.connect(url, inbox_prefix="_INBOX_operator", **options)
    for _ in range(2):
        await provision(operator.jetstream(), ["main"], scale=0.01)
    assert (await own.get("main/telemetry/a")).data == b"old"
    assert (await own.get("main/telemetry/b")).data == b"new"
    assert (await old.get("main/x/a")).data == b"old", "a reader's that is no service's stays"
    for name in ("main/telemetry/a", "main/telemetry/b"):
        with pytest.raises(ObjectNotFoundError):
            await old.get(name)
    assert (await js.stream_info("OBJ_baton-snapshots")).config.max_bytes == 1 << 20, (
        "it gives back what it had reserved"
    )
    for connection in (admin, operator):
        await connection.close()
