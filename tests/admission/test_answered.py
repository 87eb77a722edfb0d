"""What a process reads of what others have answered, and what it says while it cannot."""

import pytest
from nats.aio.client import Client

from schemas import subjects
from schemas.ids import answer_id
from services.admission.answered import Answered
from tests.core.builders import job


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


async def test_what_was_passed_on_and_not_decided_is_known_as_answered(nats: Client, pool: str) -> None:
    """The broker knows the place of a request for two minutes; while placement is away nothing but the inbox knows the job."""
    js, sent = nats.jetstream(), dict[str, str]()
    answered = Answered(js, "admission", lambda: {pool: 0}, sent.__setitem__)
    for number in (7, 8):
        admitted = job(f"k{number}").model_copy(update={"cause": f"REQUESTS:{number}"})
        headers = {"ce-specversion": "1.0", "ce-type": "io.baton.job.admitted.v1", "ce-id": "1", "ce-source": "/test"}
        await js.publish(subjects.inbox("job", "admitted", pool), admitted.model_dump_json().encode(), headers=headers)
        await answered.catch_up()
        assert answer_id(admitted.cause, admitted.submitted_us) in answered
        assert answer_id(admitted.cause, admitted.submitted_us + 1) not in answered
        assert sent[admitted.job_id] == pool
