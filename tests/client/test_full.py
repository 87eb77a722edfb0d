"""A stream of requests that is full: whoever submits is told so at once, and nothing of it was taken."""

from pathlib import Path

import pytest
from nats.js.errors import APIError

from libs.bus.connect import close, connect
from libs.bus.outbox import is_full
from libs.bus.streams import provision
from libs.bus.trim import fill_of
from libs.client import Busy
from libs.client import connect as connect_client
from libs.embedded.servers import NATS
from schemas import subjects
from schemas.jobs import JobSpec
from tests.kit.background import ServerInBackground


async def test_who_submits_to_a_full_stream_is_told_that_it_is_busy_and_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    with ServerInBackground(NATS, tmp_path / "own") as server:
        nats = await connect(server.url, name="test")
        js = nats.jetstream()
        await provision(js, ["main"], scale=0.0005)  # REQUESTS: 512 KiB
        refused: APIError | None = None
        for size in (20_000, 1_000, 1):  # smaller ones fit in what the larger have left
            while True:
                try:
                    await js.publish(subjects.submit("loud", f"u{size}"), b"x" * size)
                except APIError as error:
                    refused = error
                    break
        assert refused is not None
        assert is_full(refused)
        info = await js.stream_info(subjects.REQUESTS)
        assert fill_of(info) > 0.95
        async with await connect_client(server.url, "quiet") as team:
            with pytest.raises(Busy, match=r"stream of requests is full.*send it again in"):
                await team.submit(JobSpec(command=("x",)), "k1", wait_admitted=False)
            assert (await js.stream_info(subjects.REQUESTS)).state.last_seq == info.state.last_seq, "nothing was taken"
            await js.purge_stream(subjects.REQUESTS, subject=subjects.submit("loud", "u20000"))
            assert (await team.submit(JobSpec(command=("x",)), "k1", wait_admitted=False)).client_key == "k1"
            assert (await js.stream_info(subjects.REQUESTS)).state.last_seq == info.state.last_seq + 1
        await close(nats)
