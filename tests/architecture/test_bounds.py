"""The numbers of docs/bounds.md are those of the code: the page has each in the words that stand here."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from libs.bus import dead, queries, request_size_limit, table, trim
from libs.bus.settle import PARKED
from libs.bus.stream_space import CANCELS_HIGH_WATER, SUBMITS_HIGH_WATER
from libs.core.admission import intake, request_throttle, traffic
from libs.core.billing import in_days, metering, use_hours
from libs.core.projections import history
from libs.core.proofs.chains import MOST_SINCE
from libs.core.scheduling import allowances
from libs.core.scheduling.promises import tell
from libs.core.scheduling.reactions import agents, inventories
from libs.core.state import early_cancels, ended, past_use, usable
from libs.ledger import rolling, samples
from libs.service import http_limits
from libs.walls import accounts, floods
from schemas import queues, secrets, subjects
from schemas.envelope import MAX_ATTRIBUTE
from schemas.nodes import PIECE_BYTES
from services.admission import fair_queueing, out_of_order, window
from services.admission.settings import AdmissionSettings
from services.agent import kept_groups, reports
from services.agent.settings import AgentSettings
from services.history import logs
from services.history import trim as trim_of_events
from services.history.settings import HistorySettings
from services.placement import node_notifier
from services.queries import answers, heavy
from services.queries.settings import QueriesSettings
from services.quota_billing import handlers
from services.quota_billing.settings import QuotaBillingSettings

PAGE = Path(__file__).parents[2] / "docs" / "bounds.md"
KIB, MIB = 1024, 1024 * 1024
SHIPPED, TRAFFIC = intake.SHIPPED, traffic.EVERYBODYS


def usual(of: type[BaseModel], name: str) -> str:
    return f"{of.model_fields[name].default:,.0f}"


def percent(share: float) -> str:
    return f"{100 * share:.0f}"


MEMORY = (
    f"({past_use._FORGOTTEN // past_use.PERIODS} half-lives at the most)",
    f"{past_use.MOST_USERS:,} of those who hold nothing",
    f"(`RecentPreemptions`, of each job the last {queues.MOST_PER_JOB} times)",
    f"{queues.MOST_BOOSTS} moments of each team that had one",
    f"(or node), {queries._MOST:,} in all",
    f"{queries._EACH} of a team (or node)",
    f"{queries.QUESTIONS_AT_ONCE:,} at once, {queries.QUESTIONS_PER_S:,} a second. The next is refused",
    f"{queries.REFUSALS_AT_ONCE:,} at once and {queries.REFUSALS_PER_S} a second of them",
    f"{usual(QueriesSettings, 'questions_each')} of a team, {heavy._MOST:,} in all; the next is refused",
    f"what it lists ({answers._QUEUE_VIEW:,} jobs at the most)",
    f"by whatever process; {out_of_order.OutOfOrder()._most:,} at the most",
    f"{http_limits.MOST}, of {http_limits.LONGEST_S:.0f} s each",
    f"| connections of a team | {accounts.TEAM_CONNECTIONS} |",
    f"| {accounts.TEAM_SUBSCRIPTIONS}, {accounts.NODE_SUBSCRIPTIONS}; of the agents of a simulated pool "
    f"{accounts.POOL_SUBSCRIPTIONS:,} |",
    f"| {accounts.NODE_CONNECTIONS}, {accounts.LOGS_SUBSCRIPTIONS} each |",
    f"| {queries.ANSWER_S} s while nobody answers (`ANSWER_S`) |",
    f"of the {intake._BUCKETS:,} teams that were seen last",
    f"of {fair_queueing._TEAMS} teams {fair_queueing._EACH} each, 32 MiB in all: "
    f"{fair_queueing._PAGE_BYTES // KIB} KiB are asked for",
    f"| {MOST_SINCE:,} lines, 6 MB;",
    f"MongoDB: {usual(HistorySettings, 'proof_days')} days (`BATON_HISTORY_PROOF_DAYS`)",
    f"{in_days.MOST_USES:,} uses that are rated anew",
    f"and the rows of the answer: {handlers.MAX_ROWS:,}; of what is kept {handlers.MAX_HOURS:,} hours of teams and "
    f"{handlers.MAX_READ:,} sums",
    f"hours of teams, each at most {use_hours.MOST_ROWS} rows",
    f"{usual(QuotaBillingSettings, 'keep_use_days')} days (`BATON_QUOTA_BILLING_KEEP_USE_DAYS`)",
    f"{samples.SAMPLES_AT_ONCE:.0f} samples of a node at once and then one in ten seconds; {metering.MOST_RECENT:,} postings",
    f"the last {usual(HistorySettings, 'cache_jobs')} documents that changed, of jobs that have not ended, and of these "
    f"{usual(HistorySettings, 'cache_mib')} MiB",
    f"its last {history.KEEP_ATTEMPTS} attempts and {history.KEEP_EVENTS} events; the devices of its last "
    f"{history.KEEP_DEVICES} attempts, of all of these together {history.MOST_DEVICES:,}",
    f"of the last {history.KEEP_REFERENCES} events that say it",
    f'{logs._MOST_OF_A_TEAM} of a team; the next is refused with "ask again"',
    f"of {usual(AgentSettings, 'keep_attempts')} (`BATON_AGENT_KEEP_ATTEMPTS`)",
    f"| {kept_groups.MOST:,} on a machine; at half of them",
)
STREAMS = (
    *(
        f"| {name} | {table.SIZES_MIB[stream]:,} |"
        for name, stream in {
            "REQUESTS": subjects.REQUESTS,
            "INBOX of a pool": subjects.INBOX,
            "LEDGER of a pool": subjects.LEDGER,
            "EVENTS": subjects.EVENTS,
            "DEAD": subjects.DEAD,
            "TELEMETRY": subjects.TELEMETRY,
            "cursors": table.CURSORS_BUCKET,
            "secrets": table.SECRETS_BUCKET,
            "readers": table.READERS_BUCKET,
        }.items()
    ),
    f"Their sum, {table.reserved_bytes(['main']) / MIB / KIB:.1f} GiB for one pool and "
    f"{(table.reserved_bytes(['main', 'other']) - table.reserved_bytes(['main'])) / MIB / KIB:.0f} GiB more",
    f"| {min(table.SNAPSHOTS_MIB.values())} to {max(table.SNAPSHOTS_MIB.values()):,}, together "
    f"{sum(table.SNAPSHOTS_MIB.values()):,} (`SNAPSHOTS_MIB`); {table.SIZES_MIB[table.SNAPSHOTS_BUCKET]} for readers",
    f"A user may have {table.WAITING_OF_A_SENDER} messages of one kind",
    f"the oldest of a sender that has more than {table.DEAD_OF_A_SENDER}",
    f"the oldest of a node that has more than {table.SAMPLES_OF_A_NODE}. A sample has {table.SAMPLE_BYTES // KIB} KiB",
    f"A team may have {secrets.SECRETS_OF_A_TEAM} secrets of at most {secrets.VALUE_BYTES // KIB} KiB, "
    f"{secrets.TEAM_BYTES // KIB} KiB of values",
    f"At {percent(rolling.ROLL_AT)} % the writer rolls",
    f"of REQUESTS also with more than {trim.SENDERS:,} senders",
    f"{percent(SUBMITS_HIGH_WATER)} % of an inbox, or of the ledger",
    f"Cancels end at {percent(CANCELS_HIGH_WATER)} %",
    f"{percent(trim_of_events.TRIM_AT)} % of EVENTS | history drops the oldest events of the teams that have most, down to "
    f"{percent(trim_of_events.TRIM_TO)} %",
    f"At most {PARKED:,} are parked by one process",
    "| a request may have, with its headers | "
    + " | ".join(f"{size // KIB} KiB" for _, size in reversed(request_size_limit.SIZE_STEPS)),
    f"(after {intake.LEAST_WAIT_S:.0f} s, because",
)
MESSAGES = (
    f"| {PIECE_BYTES // KIB} KiB, or less where the broker takes less |",
    f"| {reports.MESSAGE_BYTES:,} bytes as encoded",
    f"| `NodeRegistered`, `BoardCut` | {reports.LARGEST_BYTES:,} bytes |",
    f"| any answer to a team, as it is sent | {queries.TEAM_ANSWER_BYTES // KIB} KiB; what is longer than "
    f"{queries._PACKED_BYTES // KIB} KiB is compressed",
    f"of {accounts.TEAM_CONNECTIONS * accounts.TEAM_SUBSCRIPTIONS:,} subscriptions of a team",
    f"| {dead._STACK_CHARACTERS:,} characters |",
    f"| {dead._KEPT_BYTES // KIB} KiB of the original's headers, {dead._REQUEST_BYTES // KIB} KiB of a request's payload, "
    f"{dead._PAYLOAD_BYTES:,} bytes of any other |",
    f"(`ce-...`, `traceparent`) | {MAX_ATTRIBUTE:,} characters |",
    f"move it by a minute; {tell.MOST} in one decision",
    f"| parts of attempts on one node | {usable.MOST_PARTS:,}, and",
    f"| messages to nodes that wait to be sent | {node_notifier._WAITING_BYTES // MIB} MiB |",
)
KEYS = (
    f"of 2^{ended.MAX_SLOTS.bit_length() - 1} places",
    f"{early_cancels.PER_TEAM:,} per team and {early_cancels.IN_ALL:,} in all",
)
BURSTS = (
    f"Up to {fair_queueing._TEAMS} active teams have one",
    f"or {fair_queueing._FULL_S} s when another team waits",
    f"with more than {fair_queueing._SENDERS:,} users in the stream",
    f"{fair_queueing._EACH} jobs while its waiting requests fit into its lane, else an equal share of the window, but at least "
    f"{fair_queueing._LEAST}. A request counts once more for each {fair_queueing._HEAVY_BYTES // KIB} KiB of it, and a header "
    f"as at least {fair_queueing._HEADER_BYTES} bytes",
    f"It begins with {usual(AdmissionSettings, 'undecided')} jobs (`BATON_ADMISSION_UNDECIDED`); grows while half of it is",
    f"and round trips take less than {1000 * window._QUICK_S:.0f} ms, or {window._QUICK} times an idle one; and shrinks, down",
    f"to {window._LEAST}, when they take more than {1000 * window._SLOW_S:.0f} ms and",
    f"it is {usual(AdmissionSettings, 'undecided_alone')} (`BATON_ADMISSION_UNDECIDED_ALONE`)",
    f"and {round(out_of_order._LEAST_ROOM * table.WAITING_OF_A_SENDER)} at the least (`OutOfOrder.held_back`)",
    f"evenly, within {out_of_order._BACK_S:.0f} s",
    f"each team may have {SHIPPED.open_jobs:,} open jobs of {SHIPPED.open_kinds:,} kinds, "
    f"{(SHIPPED.open_bytes or 0) / MIB:.0f} MiB of their specs, {SHIPPED.submits_per_s:,.0f} submits "
    f"and 1 MB a second, {SHIPPED.burst:,} and 64 MB at once",
    f"{intake.IDLE_CANCELS} at once and one a second, because each of them",
    f"{request_throttle.AT_ONCE:.0f} at once, {request_throttle.PER_S:.0f} a second for ever",
    f"| messages that it says, whatever becomes of them | {TRAFFIC.said_per_s:,.0f} | "
    f"{(TRAFFIC.said_per_s or 0) * traffic.AT_ONCE_S:,.0f} |",
    f"| messages that it hears, each copy for a subscription by itself | {TRAFFIC.heard_per_s:,.0f} | "
    f"{(TRAFFIC.heard_per_s or 0) * traffic.AT_ONCE_S:,.0f} |",
)
NODES = (
    f"| messages, bytes of a node's account | {floods.MESSAGES_AT_ONCE:,.0f}, {floods.BYTES_AT_ONCE / MIB:.0f} MiB | "
    f"{floods.MESSAGES_PER_S:.0f} and {floods.BYTES_PER_S / MIB:.0f} MiB a second |",
    f"| lives of a node | {allowances.LIVES:.0f} | one a minute |",
    f"| {allowances.NODE_DEVICES:,} (`BATON_PLACEMENT_NODE_DEVICES`) |",
    f"places that no node had before | {allowances.NAMES:,.0f} | one a minute |",
    f"| {inventories.MOST_BOARDS:,}, {inventories.LONGEST_NAME} and {inventories.MOST_LABELS:,} |",
    f"| 2^{agents.MOST_AHEAD.bit_length() - 1} above the last one",
    f"| {allowances.POOL_DEVICES:,} and {allowances.POOL_NODES:,} |",
    f"or no more (quarantine) | {allowances.QUARANTINES:.0f} | one a second |",
    f"| samples that count in what was used | {samples.SAMPLES_AT_ONCE:.0f} | one in ten seconds |",
    f"| samples that are kept | {table.SAMPLES_OF_A_NODE}, of {table.SAMPLE_BYTES // KIB} KiB |",
    f"| {node_notifier.LOOKED_AT_ONCE:,.0f} | {node_notifier.LOOKED_PER_S:.0f} a second |",
    f"(each question counts for {'eight' if node_notifier._LEAST == 8 else node_notifier._LEAST} more)",
    f"with a word in the ledger and a dead letter | {allowances.REJECTED:.0f} | one a second |",
)


@pytest.mark.parametrize("words", [*MEMORY, *STREAMS, *MESSAGES, *KEYS, *BURSTS, *NODES])
def test_the_page_has_the_codes_number(words: str) -> None:
    page = re.sub(r"\[\^\w+\]", "", PAGE.read_text())
    assert words in re.sub(r"[ \n]+", " ", page)
