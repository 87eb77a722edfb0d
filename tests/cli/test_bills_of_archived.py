"""Bills of a pool whose first segments were archived and are not on the broker any more."""

import json
from pathlib import Path

from libs.bus.connect import Address, BusConnection
from libs.bus.streams import provision
from libs.core.scheduling.decider import Deciders
from libs.ledger.archive import archive, files_of
from libs.ledger.segments import name_of
from libs.ledger.writer import LedgerWriter
from tests.cli.test_command import baton
from tests.kit.tasks import beside

POOL = "archived"
BOOK = "version: {version}\ncurrency: USD\nprices:\n- {{device: H100, price: 2.99, from: 2020-01-01}}\n"


async def test_bills_are_made_and_periods_closed_with_the_archive(
    urls: dict[str, Address], services: BusConnection, tmp_path: Path
) -> None:
    """Seen: after `baton ledger archive --delete` no bill could be made of the pool, and no period be closed."""
    js, url = services.jetstream(), urls["operator"]
    book, folder, bill = tmp_path / "book.yaml", tmp_path / "segments", tmp_path / "bill.csv"
    await provision(js, [POOL], scale=0.01)

    async def passed() -> dict[str, int]:
        return {"placement": 10_000}

    async with beside(LedgerWriter(js, POOL, Deciders(), writer_id="w1").run()):
        of_pool = ("--pool", POOL)
        for version in (1, 2):
            book.write_text(BOOK.format(version=version))
            assert (await baton("prices", "apply", "-f", str(book), *of_pool, url=url)).code == 0
            rolled = await baton("ledger", "roll", *of_pool, "-o", "json", url=url)
            assert rolled.code == 0, rolled.err
            told = json.loads(rolled.out)
            assert told == {**told, "pool": POOL, "done": "rolled"}
            assert told["open"] == name_of(POOL, told["last"] + 1)
        before = await baton("bill", "export", str(bill), "--from", "2020-01", *of_pool, url=url)
        assert [one.kept == "" for one in await archive(js, POOL, folder, resumes=passed)] == [True, False]

        period = ("--from", "2020-01", *of_pool)
        told = await baton("bill", "statement", *period, url=url)
        assert (told.code, "--archive FOLDER" in told.err) == (2, True), told.err
        with_archive = (*period, "--archive", str(folder))
        told = await baton("bill", "statement", *with_archive, url=url)
        assert (told.code, "COST USD" in told.out) == (0, True), (
            "the currency is that of a book that lies in the archive"
        )
        closed = await baton("bill", "close", "--empty", *with_archive, url=url)
        assert closed.code == 0, closed.err
        again = await baton("bill", "export", str(bill), *with_archive, url=url)
        assert (again.code, again.out) == (0, before.out), "the rows' hash"
        verify = ("bill", "verify", str(bill), *of_pool, "--archive", str(folder))
        same = await baton(*verify, "-o", "json", url=url)
        assert same.code == 0, same.err
        assert (json.loads(same.out)["ok"], json.loads(same.out)["differs"]) == (True, [])
        text = bill.read_text()
        bill.write_text(text + "x")
        differs = await baton(*verify, "-o", "json", url=url)
        found = json.loads(differs.out)
        assert (differs.code, found["ok"]) == (1, False)
        assert f"differs: {found['differs'][0]}" in differs.err
        bill.write_text(text)
        both = await baton("bill", "statement", *with_archive, "--ledger", str(bill), url=url)
        assert (both.code, "--ledger" in both.err) == (2, True)

        rest = tmp_path / "rest.jsonl"
        told = await baton("ledger", "export", str(rest), *of_pool, url=url)
        assert (told.code, "--archive FOLDER" in told.err, rest.exists()) == (2, True, False), told.err
        told = await baton("ledger", "export", str(rest), *of_pool, "--archive", str(folder), url=url)
        assert told.code == 0, told.err
        gone, kept = files_of(folder, POOL)
        assert f"follows {gone}" in told.err
        whole = await baton("ledger", "verify", "--file", str(gone), "--file", str(rest), url=url)
        assert whole.code == 0, whole.err

        archived = await baton("ledger", "archive", str(folder), *of_pool, "-o", "json", url=url)
        (one,) = json.loads(archived.out)
        assert (archived.code, one["file"], bool(one["kept"])) == (0, str(kept), True), "it was not asked for"
        back = await baton("ledger", "restore", str(gone), str(kept), "--reason", "x", *of_pool, "-o", "json", url=url)
        (one,) = json.loads(back.out)
        assert (back.code, one["name"], one["first"]) == (0, name_of(POOL, 1), 1), back.err
        assert "nothing needs to be restored" in back.err

        deletes = ("ledger", "archive", str(folder), "--delete", "--reason", "x", *of_pool)
        kept_by = await baton(*deletes, "--without", "vault", "--without", "leases", url=url)
        assert "telemetry is not declared" in kept_by.out, kept_by.err
        assert all(f"{name} is not declared" not in kept_by.out for name in ("placement", "vault", "leases"))
        assert (kept_by.code, "say --without READER" in kept_by.err) == (0, True), kept_by.err
        misspelt = await baton(*deletes, "--without", "telemtry", url=url)
        assert (misspelt.code, "those are: admission, history-documents," in misspelt.err) == (2, True), misspelt.err
