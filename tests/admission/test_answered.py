"""What is said while refusals cannot be read."""

import pytest
from nats.aio.client import Client

from services.admission.answered import Answered


async def test_that_refusals_cannot_be_read_is_said_once_an_outage(
    nats: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen: a line for every try, while the broker was away."""
    told, tries = (
        Answered(nats.jetstream(), "admission"),
        iter([TimeoutError(), TimeoutError(), TimeoutError(), None]),
    )

    async def read() -> None:
        if (error := next(tries)) is not None:
            raise error

    monkeypatch.setattr(told, "_refused", read)
    with caplog.at_level("WARNING", logger="baton.admission"):
        await told.catch_up()
    assert len([record for record in caplog.records if "cannot be read" in record.getMessage()]) == 1
