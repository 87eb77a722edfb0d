"""Samples of nodes share one stream. What a node sends too much costs its own samples, and nobody else's."""

from itertools import pairwise

from nats.js.api import DiscardPolicy

from libs.bus.connect import close, connect
from libs.bus.streams import provision
from libs.bus.table import SAMPLE_BYTES, SAMPLES_OF_A_NODE, streams
from libs.ledger.samples import SAMPLES_AT_ONCE, SampleAllowance, told_by
from libs.ledger.tail import Stored
from schemas import subjects
from schemas.nodes import DeviceSample, NodeSampled
from schemas.subjects import TELEMETRY
from tests.kit.background import ServerInBackground

S = 1_000_000


def subject(node: str) -> str:
    return subjects.sample("p", node)


async def test_a_node_that_samples_without_end_drops_its_own_samples_alone(own_server: ServerInBackground) -> None:
    """It sends three times as much as the stream takes; what is too large to be a sample is not kept."""
    connection = await connect(own_server.url, name="test")
    js = connection.jetstream()
    await provision(js, ["p"], scale=0.3)
    await js.publish(subject("quiet"), b"once")
    for _ in range(4 * SAMPLES_OF_A_NODE):
        await connection.publish(subject("loud"), b"x" * (SAMPLE_BYTES - 256))
    await connection.publish(subject("large"), b"x" * 2 * SAMPLE_BYTES)
    await js.publish(subject("quiet"), b"again")
    state = (await js.stream_info(TELEMETRY, subjects_filter=">")).state
    assert state.subjects == {subject("quiet"): 2, subject("loud"): SAMPLES_OF_A_NODE}
    await close(connection)


async def test_a_stream_of_samples_that_was_made_before_is_bounded_too(own_server: ServerInBackground) -> None:
    connection = await connect(own_server.url, name="test")
    js = connection.jetstream()
    (wanted,) = [config for config in streams(["p"], scale=0.01) if config.name == TELEMETRY]
    await js.add_stream(wanted.evolve(max_msgs_per_subject=-1, max_msg_size=-1))
    await provision(js, ["p"], scale=0.01)
    told = (await js.stream_info(TELEMETRY)).config
    assert (told.max_msgs_per_subject, told.max_msg_size) == (SAMPLES_OF_A_NODE, SAMPLE_BYTES)
    assert told.discard == DiscardPolicy.OLD
    await close(connection)


def test_of_what_a_node_samples_so_much_counts() -> None:
    """Who keeps what was used has every sample in memory for twenty minutes: of one node it was gigabytes."""

    def stored(node: str, at_us: int) -> Stored:
        sample = NodeSampled(
            node=node, incarnation=1, at_us=1, devices=(DeviceSample(device="d", utilization_pct=1, memory_used_mib=1),)
        )
        return Stored(1, subject(node), {}, sample.model_dump_json().encode(), at_us)

    allowance = SampleAllowance()
    hour = [stored("loud", at) for at in range(0, 600 * S, S // 10)]
    counted = [at for at, _ in told_by(hour, "p", allowance)]
    assert len(counted) <= SAMPLES_AT_ONCE + 60
    assert all(later - earlier < 15 * S for earlier, later in pairwise(counted)), "each stretch of its time is told of"
    usual = [stored("quiet", at) for at in range(0, 600 * S, 15 * S)]
    assert len(list(told_by(usual, "p", allowance))) == len(usual)
