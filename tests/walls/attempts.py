"""The attempts of docs/security.md, one row each: `python -m tests.walls.attempts` writes the table into the page.

Each names the test that makes it, as `path::function`, and where one test makes many, what stands there: `test_attempts.py`
looks for both. So a row cannot stay when its test goes.
"""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
BEGIN, END = "<!-- attempts -->", "<!-- end of attempts -->"


@dataclass(frozen=True, slots=True)
class Attempt:
    """`finding`: which of the experiments' findings this is, 0: a further one. `where`: what is tried stands there so."""

    finding: int
    who: str
    tries: str
    why: str
    test: str
    where: str = ""


_TEAM, _NODE, _SERVICE, _JOB, _STRANGER, _ADMIN = "team", "node", "service", "job", "stranger", "team's admin"
_ATTACKS, _ROLES, _PROTOCOL = "tests/walls/test_attacks.py", "tests/walls/test_roles.py", "tests/walls/test_protocol.py"
_REPLY, _ITS_OWN = f"{_ATTACKS}::test_an_answer_goes_nowhere_else", f"{_ATTACKS}::test_what_is_not_its_own_is_not_there"
_HEADER, _FORGED = f"{_ATTACKS}::test_no_header_helps", f"{_ATTACKS}::test_a_forged_credential_is_refused"
_API = f"{_ATTACKS}::test_no_api_of_the_broker_hears_it"
_RATE, _FULL = "tests/walls/test_hostile.py::test_a_hostile_team_at_rate_harms_nobody", "tests/jail/test_full.py"
_REACHES = f"{_FULL}::test_a_hostile_job_reaches_nothing"
_FLOODS, _ALLOWED = "tests/walls/test_floods.py", "tests/core/test_allowances.py"
_SERVERS, _SIGHT = "tests/embedded/test_servers.py", "tests/sight/test_what_a_team_sees.py"
_STAYS = "the answer stays in the account of who asked"
_VIEW = "it is not in the job's view, and another user's"
_BOUNDED = "each is answered or laid aside once; others' jobs run, memory and letters are bounded"
_SIGNED = "only what the operator's and the account's keys have signed counts"

ATTEMPTS = (
    # 1: a reply subject
    Attempt(1, _TEAM, "a question whose reply subject is the ledger", _STAYS, _REPLY, "LEDGER"),
    Attempt(1, _TEAM, "... a pool's inbox", _STAYS, _REPLY, "baton.in.job.v1.admitted.main"),
    Attempt(1, _TEAM, "... another team's request", _STAYS, _REPLY, "baton.cmd.job.v1.submit.green.eve"),
    Attempt(1, _TEAM, "... another team's event", _STAYS, _REPLY, "baton.evt.job.v1.succeeded.green"),
    Attempt(1, _TEAM, "... what a node is told to run", _STAYS, _REPLY, "baton.cmd.node.v1.desired.main.n1"),
    Attempt(1, _TEAM, "... the buckets of cursors and snapshots", _STAYS, _REPLY, "$O.baton-snapshots-placement.C.x"),
    Attempt(1, _TEAM, "... an API of JetStream or of the broker", _STAYS, _REPLY, "$JS.API.STREAM.PURGE.REQUESTS"),
    Attempt(1, _TEAM, "... an answer that somebody else waits for", _STAYS, _REPLY, "_INBOX_green.eve.x"),
    Attempt(1, _NODE, "the same as a node, and both without permissions of a role", _STAYS, _REPLY, "world"),
    Attempt(1, _TEAM, "without accounts: the same attack works (it is a real one)", "-",
            f"{_ATTACKS}::test_without_accounts_an_answer_went_into_the_ledger"),
    # headers, other subjects
    Attempt(0, _TEAM, "headers that name the stream or sequence that is expected", "streams allow none", _HEADER,
            "Nats-Expected-Last-Sequence"),
    Attempt(0, _TEAM, "a rollup, which would empty a stream", "the same", _HEADER, "Nats-Rollup"),
    Attempt(0, _TEAM, "a message that ends by itself, or is sent later by the broker", "the same", _HEADER, "Nats-Schedule"),
    Attempt(0, _TEAM, "a trace of the message to the ledger", "traces stay in the account", _HEADER, "Nats-Trace-Dest"),
    Attempt(0, _TEAM, "a forged word about who asks", "nobody reads it", _HEADER, "Nats-Request-Info"),
    Attempt(0, _TEAM, "a batch that is never ended", "streams of requests take none", _HEADER, "Nats-Batch-Id"),
    Attempt(0, _TEAM, "publishing what is another's: record, input, event, dead letter", "it is not imported", _ITS_OWN,
            "baton.dead.admission.green"),
    Attempt(0, _TEAM, "listening to all, to others, to replies, in the services' queue groups", "the same",
            f"{_ATTACKS}::test_it_hears_nobody_else", "LISTENING"),
    Attempt(0, _TEAM, "answering in a service's place", "others' questions never reach the account",
            f"{_ATTACKS}::test_it_cannot_answer_for_a_service"),
    Attempt(0, _TEAM, "a stream or consumer of its own, a copy of the ledger", "the account has no JetStream",
            f"{_ATTACKS}::test_it_has_no_streams_of_its_own", "STREAM.CREATE.COPY"),
    *(Attempt(0, _TEAM, tries, "no API is imported", _API, where) for tries, where in (
        ("a consumer that delivers into the ledger, or to who waits for an answer", "delivers into the ledger"),
        ("what waits for a service, pulled in its place, or sent to another", "pulled in its place"),
        ("another's request ended, or given out again", "ends what admission has in hand"),
        ("a service's consumer paused, reset, deleted, unpinned", "CONSUMER.PAUSE"),
        ("a copy of the ledger sent to it (snapshot), another one in its place (restore)", "STREAM.SNAPSHOT"),
        ("a stream that publishes what it stores elsewhere (republish)", "republish"),
        ("one message deleted, a stream sealed", "STREAM.MSG.DELETE"),
        ("the leader of a stream or of the cluster sent away, a server removed", "META.LEADER.STEPDOWN"),
        ("messages of the servers' own vote", "$NRG.V.x"),
        ("others' connections listed or kicked, the configuration read again, profiles", "SERVER.PING.KICK"),
        ("what accounts there are, how much each has sent, their claims", "ACCOUNT.PING.STATZ"),
        ("secrets of another in the broker's bucket, read or written", "KV_baton-secrets"),
    )),
    Attempt(0, _TEAM, "the id of another's message, so that that is dropped as a repeat", "ids are hashed with a secret",
            "tests/walls/test_ids.py::test_a_team_cannot_use_up_the_id_of_anothers_submit"),
    Attempt(0, _NODE, "the same in a pool's inbox", "the same",
            "tests/walls/test_ids.py::test_a_node_cannot_use_up_the_id_of_a_services_message"),
    Attempt(0, _TEAM, "publishing on wildcards", "the broker takes them literally",
            f"{_PROTOCOL}::test_a_wildcard_that_is_published_reaches_nobody_elses_stream", "baton.cmd.job.v1.*.blue.*"),
    # credentials
    Attempt(0, _TEAM, "a credential that it signed itself", _SIGNED, _FORGED, "signed by itself"),
    Attempt(0, _TEAM, "... that its account signed for another", _SIGNED, _FORGED, "its own account for another"),
    Attempt(0, _TEAM, "... with more permissions than its role", _SIGNED, _FORGED, "permissions of its own"),
    Attempt(0, _TEAM, "... that has expired", _SIGNED, _FORGED, "expired"),
    Attempt(0, _TEAM, "... of another operator, of another key, unsigned", _SIGNED, _FORGED, "no signature"),
    Attempt(0, _TEAM, "to stay connected when its credential has ended (`--days`)", "the broker cuts it off",
            "tests/walls/test_team.py::test_a_user_goes_and_the_others_of_the_team_stay", "lasts_s=6"),
    Attempt(0, _TEAM, "another claim for its account, told to the broker", "only the system account tells",
            f"{_ATTACKS}::test_it_cannot_tell_the_broker_who_it_is"),
    Attempt(0, _STRANGER, "no credential, a password, a token", "the broker wants a signature",
            f"{_ATTACKS}::test_without_a_credential_nobody_comes_in", "nats://blue:@{}"),
    Attempt(0, _STRANGER, "a signature that was heard on another connection", "each connection has a nonce",
            f"{_PROTOCOL}::test_a_signature_of_another_connection_is_refused"),
    Attempt(0, _STRANGER, "a connection that says nothing", "it is cut off after two seconds",
            f"{_PROTOCOL}::test_who_says_nothing_is_cut_off"),
    Attempt(0, _STRANGER, "words of clients, routes, leaves and browsers before saying who it is", "nobody hears them",
            f"{_PROTOCOL}::test_who_has_not_said_who_it_is_is_heard_by_nobody", "a route's words"),
    Attempt(0, _TEAM, "a revoked or rotated credential, also after the broker's restart", "the newer claim counts",
            "tests/walls/test_team.py::test_who_was_revoked_stays_out_when_the_broker_starts_with_what_it_was_given_first"),
    Attempt(0, _TEAM, "the same at a server of a cluster that was away", "servers compare claims each second",
            "tests/walls/test_cluster.py::test_who_was_revoked_while_a_server_was_away_stays_out_there"),
    Attempt(0, _TEAM, "a user that speaks for another user of its team", "its role has its name",
            "tests/client/test_teams.py::test_a_user_cannot_publish_to"),
    Attempt(0, _TEAM, "to be called like a pool, an operator, a node", "such names are refused",
            "tests/walls/test_claims.py::test_no_team_has_a_name_that_means_something_else"),
    Attempt(0, _ADMIN, "to speak for another team, to make admins, to go on when revoked", "the holder of the keys looks",
            "tests/tenants/test_team_admins.py::test_only_an_admin_may_ask_and_only_for_its_own_team_and_name"),
    Attempt(0, _NODE, "to speak for another node", "its account has its name",
            "tests/client/test_teams.py::test_a_node_cannot_publish_to"),
    Attempt(0, _NODE, "to hear or answer questions for logs of others", "history asks the node that ran it",
            "tests/walls/test_logs.py::test_a_node_cannot_answer_for_another_rank"),
    Attempt(0, _SERVICE, "to say what is another's", "its role, from the catalogue",
            f"{_ROLES}::test_a_service_is_refused_what_is_anothers", "MAY_NOT"),
    Attempt(0, _SERVICE, "to hear others' questions and answers", "the same",
            f"{_ROLES}::test_a_service_hears_only_what_it_answers"),
    Attempt(0, _SERVICE, "to write another's cursor, role, declaration or snapshot", "keys bear the name",
            f"{_ROLES}::test_a_service_reads_only_its_streams", "$KV.baton-cursors"),
    Attempt(0, _SERVICE, "to empty a bucket by a rollup of its own key", "buckets take no rollups",
            f"{_ROLES}::test_nobody_empties_a_bucket_by_a_key_of_its_own"),
    Attempt(0, _SERVICE, "to read, purge or delete others' streams", "the same",
            f"{_ROLES}::test_a_service_reads_only_its_streams", "STREAM.PURGE.DEAD"),
    # 3: brokers without walls
    Attempt(3, _STRANGER, "a broker that lets anybody in", "services refuse to start",
            "tests/walls/test_outside.py::test_a_service_refuses_a_broker_that_lets_anybody_in"),
    Attempt(3, _STRANGER, "`baton up --external` on such a broker", "the same",
            "tests/walls/test_outside.py::test_up_with_such_a_broker_needs_a_word"),
    Attempt(3, _STRANGER, "compose's broker without a credential", "it has accounts and TLS",
            "tests/walls/test_compose_runs.py::test_a_job_runs_through_composes_services", "nobody"),
    Attempt(3, _STRANGER, "a broker in the middle, with another certificate or name", "TLS by our authority alone",
            "tests/walls/test_wire.py::test_a_broker_with_our_certificate_is_trusted_and_no_other"),
    Attempt(3, _STRANGER, "plain URLs of other hosts", "they are refused",
            "tests/walls/test_wire.py::test_plain_urls_of_other_hosts_are_refused"),
    # 4, 5: crowds and rubbish
    Attempt(4, _TEAM, "thousands of headers", _BOUNDED, _RATE, "thousands of headers"),
    Attempt(4, _TEAM, "bodies larger than are taken", _BOUNDED, _RATE, "huge bodies"),
    Attempt(4, _TEAM, "thousands of fields, each of which is wrong (a second of admission's for each request)",
            "fifty are told; what they are compared with is worked out once", _RATE, "thousands of wrong fields"),
    Attempt(4, _TEAM, "hundreds of thousands of values that are wrong", "8,192 in what anybody may send",
            "tests/bus/test_messages.py::test_ambiguous_or_hostile_json_is_refused", "MAX_VALUES"),
    Attempt(4, _TEAM, "rubbish bytes", _BOUNDED, _RATE, "rubbish bytes"),
    Attempt(4, _TEAM, "deep JSON", _BOUNDED, _RATE, "deep JSON"),
    Attempt(4, _TEAM, "other versions of messages and envelopes", _BOUNDED, _RATE, "other versions"),
    Attempt(4, _TEAM, "long names and control characters", _BOUNDED, _RATE, "long names and control characters"),
    Attempt(4, _TEAM, "messages beyond what the broker takes", "it cuts the connection",
            f"{_PROTOCOL}::test_words_that_no_client_says_are_refused", "9000000"),
    Attempt(5, _TEAM, "cancels of unknown jobs without end", "100, then one a second", _RATE, "cancels of unknown jobs"),
    Attempt(5, _TEAM, "commands by words that it invents, each with a bound of its own", "a user has the two that there are",
            "tests/client/test_teams.py::test_a_user_cannot_publish_to", "baton.cmd.job.v1.invented.blue.ana"),
    Attempt(5, _TEAM, "cancels of another's jobs, whose keys are guessed", "they count for who sends them",
            "tests/admission/test_handlers.py::test_who_cancels_jobs_of_another_uses_up_its_own_allowance"),
    Attempt(5, _TEAM, "one key with many bodies", "the first counts", _RATE, "one key, other bodies"),
    Attempt(5, _TEAM, "questions about the pool without end", "32 wait for each team; teams take turns", _RATE, "questions"),
    Attempt(5, _TEAM, "questions to history, bills, nodes and secrets without end", "256 wait for each team; teams take turns",
            "tests/bus/test_queries.py::test_a_crowd_of_one_teams_questions_holds_up_no_other_teams"),
    Attempt(5, _TEAM, "every question that it may ask, filled with nonsense", "each is answered with what is wrong", _RATE,
            "questions filled with nonsense"),
    Attempt(5, _TEAM, "subscriptions that come and go", _BOUNDED, _RATE, "a storm of subscriptions"),
    Attempt(5, _TEAM, "an answer that the broker copies for each of 20,000 own subscriptions", "16 for a connection",
            f"{_ATTACKS}::test_a_connection_has_so_many_subscriptions_and_no_more"),
    Attempt(5, _TEAM, "the same on as many connections as it can open", "256 connections; others are answered",
            f"{_ATTACKS}::test_a_team_that_opens_all_that_it_may_does_not_end_the_broker"),
    Attempt(5, _TEAM, "ids of 64 KiB in thousands (`Nats-Msg-Id`), which the broker keeps when their messages are gone",
            "it forgets those of requests after ten seconds",
            "tests/bus/test_streams.py::test_ids_of_what_teams_send_are_remembered_for_seconds"),
    Attempt(0, _NODE, "inputs of 4 MiB, so that its pool's inbox is full", "it may send no more at once than its messages have",
            f"{_ATTACKS}::test_a_node_sends_no_more_at_once_than_its_messages_have"),
    Attempt(0, _NODE, "small inputs without end, or large ones, so that its pool decides nothing else",
            "5,000 and 64 MiB at once, 500 and 4 MiB a second; then it is cut off",
            f"{_FLOODS}::test_a_node_that_floods_its_pools_inbox_is_cut_off_and_the_others_go_on", "EVIL"),
    Attempt(0, _NODE, "atomic batches that it never ends, so that the disk fills and services' batches are refused",
            "16 of 256 messages for two seconds; services then send one by one",
            f"{_FLOODS}::test_batches_that_a_node_never_ends_fill_no_disk_and_hold_up_no_service"),
    Attempt(0, _NODE, "lives without end, each with an inventory for the ledger", "20, then one a minute",
            f"{_ALLOWED}::test_a_node_begins_so_many_lives_at_once_and_then_one_a_minute"),
    Attempt(0, _NODE, "new names of devices with each life, which all are kept", "65,536 of a node",
            f"{_ALLOWED}::test_ids_of_devices_that_a_node_has_ever_had_are_bounded"),
    Attempt(0, _NODE, "lies that are rejected with a word in the ledger and a dead letter each", "100, then one a second",
            f"{_ALLOWED}::test_of_what_is_rejected_of_a_node_so_much_is_written_down_and_the_rest_counted"),
    Attempt(0, _NODE, "devices in and out of quarantine without end", "200 times, then once a second",
            f"{_ALLOWED}::test_a_node_says_so_often_what_uses_its_devices"),
    Attempt(0, _NODE, "to move its pool's time by what its clock says, when the ticker's machine was started anew",
            "of three witnesses the middle one counts",
            "tests/core/test_clock.py::test_over_a_reboot_one_witness_of_three_that_lies_moves_no_time"),
    Attempt(0, _NODE, "to be all witnesses of time, or to make ticks that nobody can read",
            "one for each node, of 100 years at most",
            "tests/leases/test_service.py::test_a_node_is_one_witness_of_a_clock_that_a_machine_may_have"),
    Attempt(0, _NODE, "a power of 1e308 W, which ends who keeps what was used", "no device draws so much: it is not told",
            "tests/core/test_used.py::test_a_power_that_no_device_draws_is_not_told"),
    Attempt(0, _NODE, "samples of another node's devices", "a node speaks of its own",
            "tests/telemetry/test_parts.py::test_a_node_that_speaks_of_anothers_devices_is_not_heeded"),
    Attempt(0, _STRANGER, "the copied credential of a node, of the operator, of a service", "it is made void while all runs",
            "tests/walls/test_team.py::test_a_credential_of_a_node_the_operator_or_a_service_that_was_copied_is_made_void"),
    Attempt(5, _TEAM, "more connections than a team may have", "the account's claim bounds them",
            f"{_ATTACKS}::test_a_team_has_so_many_connections_and_no_more"),
    Attempt(5, _TEAM, "more than its rate, jobs or bytes", "refused with the limit and when to come again",
            "tests/core/test_intake.py::test_no_more_than_burst_and_rate_allow"),
    Attempt(5, _TEAM, "the same as a team that the teams' file does not name", "its limits for all count",
            "tests/billing/test_files.py::test_the_shipped_file_bounds_what_a_team_asks_for_that_nobody_has_named"),
    Attempt(5, _TEAM, "the same on the first day, when no file says what a team may",
            "limits are shipped, and `baton up` prints them",
            "tests/billing/test_files.py::test_without_a_file_or_a_word_in_it_teams_have_the_limits_that_are_shipped"),
    Attempt(5, _TEAM, "dead letters of all others pushed out", "each sender has its own 500",
            "tests/schemas/test_subjects.py::test_a_name_of_ones_own_choice_does_not_hide_who_speaks"),
    # 6: stores, monitors, secrets
    Attempt(6, _STRANGER, "Redis, NATS and MongoDB without a password", "all ask for one",
            f"{_SERVERS}::test_servers_want_the_password_and_listen_on_loopback_only"),
    Attempt(6, _STRANGER, "the documents of history", "a socket for one user alone",
            f"{_SERVERS}::test_the_stores_are_reached_by_our_own_user_alone"),
    Attempt(6, _STRANGER, "all connections that Redis has, without saying who it is",
            "it listens on a socket for one user alone",
            f"{_SERVERS}::test_the_stores_are_reached_by_our_own_user_alone", "of_redis"),
    Attempt(6, _STRANGER, "the broker's monitor", "its path is a secret",
            f"{_SERVERS}::test_the_monitoring_page_is_found_by_those_who_know_its_path"),
    Attempt(6, _STRANGER, "`/metrics` and `/readyz`", "a token for each process",
            "tests/service/test_guard.py::test_a_page_asks_for_its_token"),
    Attempt(6, _SERVICE, "rows of Redis that are another's", "a user for each service",
            "tests/redis/test_rights.py::test_each_service_can_do_its_work_and_no_more"),
    Attempt(6, _TEAM, "a secret of another team, or for a job that does not run", "vault follows the ledger",
            "tests/vault/test_attacks.py::test_nobody_but_the_node_is_given_a_secret"),
    Attempt(6, _TEAM, "the value of a secret anywhere but in its job", "it is sealed to the node",
            "tests/vault/test_end_to_end.py::test_a_secret_reaches_its_job_and_nobody_else"),
    # 2, 7: jobs
    Attempt(2, _JOB, "the agent's keys and credentials", _VIEW, _REACHES, "creds/nats.creds"),
    Attempt(2, _JOB, "other teams' files, checkpoints and logs", _VIEW, _REACHES, "victims_checkpoint"),
    Attempt(2, _JOB, "environments and memory of other processes", "a pid namespace", _REACHES, "environments_of_others"),
    Attempt(2, _JOB, "killing or tracing others and its shim", "the same", _REACHES, "kill_victim"),
    Attempt(2, _JOB, "the keeper's socket, Docker's, abstract ones", "its view; landlock scopes", _REACHES, "keepers_socket"),
    Attempt(2, _JOB, "`/tmp` and shared memory of others", "its own", _REACHES, "tmp_of_others"),
    Attempt(2, _JOB, "root, set-user-id programs, another user", "no new privileges, no capabilities", _REACHES,
            "set_user_id_program"),
    Attempt(2, _JOB, "mounts, namespaces, another root", "a seccomp filter", _REACHES, "own_user_namespace"),
    Attempt(2, _JOB, "what its shim has open, and its memory, by calls of its own for that", "it may not be traced", _REACHES,
            "shims_descriptor"),
    Attempt(2, _JOB, "descriptors that were left open by who started it", "all are closed", _REACHES, "leaked_descriptors"),
    Attempt(2, _JOB, "the mounts of the host, from its own namespace on to the next", "no capabilities", _REACHES,
            "mount_namespaces_of_others"),
    Attempt(2, _JOB, "mounts of a namespace by its number", "no capabilities", _REACHES, "mounts_of_the_host"),
    Attempt(2, _JOB, "newer calls for mounts and namespaces (`open_tree_attr`, `listns`)", "the filter has them", _REACHES,
            "call_open_tree_attr"),
    Attempt(2, _JOB, "something left in the view that others copy", "what is shared is read-only", _REACHES,
            "hold_of_shared_folders"),
    Attempt(2, _JOB, "terminals of others", "an instance of its own", _REACHES, "terminals_of_others"),
    Attempt(2, _JOB, "message queues of others", "an IPC namespace", _REACHES, "queues_of_others"),
    Attempt(2, _JOB, "processor and disk before all others (real-time classes)", "no capabilities", _REACHES,
            "become_real_time"),
    Attempt(2, _JOB, "what the last job with the same view left there", "all that is writable is its own",
            "tests/jail/test_prepared.py::test_nothing_of_an_attempt_is_left_in_the_view_of_the_next"),
    Attempt(5, _TEAM, "secrets set without end, so that the ledger grows", "200, then one in 30 s",
            "tests/vault/test_vault.py::test_the_ledger_is_told_who_changed_which_secret", "too often"),
    Attempt(5, _TEAM, "large requests that fill the shared stream after they were answered", "they make room at once",
            "tests/bus/test_trim.py::test_large_messages_make_room_as_soon_as_they_are_answered"),
    Attempt(5, _TEAM, "large requests of as many users as it invents, so that the shared stream is full",
            "the fuller it is, the smaller a request may be",
            "tests/bus/test_narrowing.py::test_who_sends_large_requests_leaves_room_for_others"),
    Attempt(2, _JOB, "BPF, keys, modules, io_uring, kexec, clocks", "the same", _REACHES, "call_bpf"),
    Attempt(2, _JOB, "settings of the kernel, cgroup limits, PCI", "read-only or not there", _REACHES, "cgroup_limit"),
    Attempt(2, _JOB, "its shim's map of memory, stack and folder", "the shim is root's, and not to be looked into",
            _REACHES, "shims_maps"),
    Attempt(2, _JOB, "its shim's end, by a signal that the kernel sends when a pipe is written", "it is another user's",
            _REACHES,
            "kill_shim_by_a_pipe"),
    Attempt(2, _JOB, "the namespaces of its shim, by a process in a file's place", "a seccomp filter", _REACHES,
            "namespaces_by_pidfd"),
    Attempt(2, _JOB, "to be root, or its shim, to who asks a socket", "no capabilities", _REACHES, "be_another_to_a_socket"),
    Attempt(2, _JOB, "a second name for a set-user-id program, in its own folder", "another mount, read-only", _REACHES,
            "second_name_of_a_set_user_id_program"),
    Attempt(2, _JOB, "a set-user-id program, or one with capabilities, of its own making", "no capabilities; `nosuid`",
            _REACHES,
            "capabilities_of_a_file"),
    Attempt(2, _JOB, "a file that nobody can remove, and attributes of root's", "no capabilities", _REACHES,
            "file_that_nobody_can_remove"),
    Attempt(2, _JOB, "that the kernel ends others in its place when memory is short", "it may not lower its own score",
            _REACHES,
            "spare_itself"),
    Attempt(2, _JOB, "the host's name, and its network down", "no capabilities", _REACHES, "network_down"),
    Attempt(2, _JOB, "users of its own in its namespace", "it has no capability there", _REACHES, "own_identities"),
    Attempt(2, _JOB, "programs that the kernel starts as root (modprobe, uevents, binfmt, core dumps)",
            "/proc and /sys are read-only",
            _REACHES, "uevent_helper"),
    Attempt(2, _JOB, "the kernel's caches, huge pages, processors", "the same", _REACHES, "drop_caches"),
    Attempt(2, _JOB, "counts of pages and slabs, the machine's serial number", "root alone reads them", _REACHES, "kpagecount"),
    Attempt(7, _JOB, "virtual machines, tunnels, loop devices, mapped disks, ports, registers", "a private `/dev`", _REACHES,
            "/dev/net/tun"),
    Attempt(2, _JOB, "fanotify, swap, accounting, handles of files", "a seccomp filter", _REACHES, "call_fanotify"),
    Attempt(2, _JOB, "a daemon that outlives its job", "the namespace ends with its shim",
            f"{_FULL}::test_a_daemon_is_gone_with_its_job"),
    Attempt(2, _JOB, "processes without end", "a limit for each team",
            f"{_FULL}::test_who_starts_without_end_is_stopped"),
    Attempt(2, _JOB, "more processes, open files, `/tmp` than it asked for", "a cgroup, limits, a sized tmpfs",
            f"{_FULL}::test_a_job_is_held_to_the_limits_that_it_asked_for", "EAGAIN"),
    Attempt(2, _JOB, "a full disk", "its folders are watched; it is ended, with the figures",
            f"{_FULL}::test_a_job_that_fills_the_disk_that_it_asked_for_is_ended"),
    Attempt(2, _JOB, "... hidden in folders deeper than any path, in a file without a name, beside its acknowledgement",
            "what cannot be looked at counts as full; open files without a name are counted",
            f"{_FULL}::test_a_job_that_hides_what_it_fills_is_ended", "HIDING"),
    Attempt(2, _JOB, "... behind files that come and go while it is looked at", "each file is counted by itself",
            "tests/agent/test_folders.py::test_a_file_that_goes_away_hides_nothing_of_its_neighbours"),
    Attempt(2, _JOB, "... by what it leaves when it has ended", "who left most makes room first",
            "tests/agent/test_folders.py::test_who_left_most_makes_room_first"),
    Attempt(2, _JOB, "a tree of folders that ends the agent who removes it", "nothing recurses",
            "tests/agent/test_folders.py::test_a_tree_of_any_depth_is_removed_and_no_link_is_followed"),
    Attempt(2, _JOB, "the hypervisor's socket, also without a network, and the kernel's rarer kinds of sockets",
            "four families of sockets are allowed", _REACHES, "hypervisors_socket"),
    Attempt(6, _JOB, "connections to the services' HTTP ports on which it says nothing, or half a request",
            "64 at once, 30 s each; the oldest gives way",
            "tests/service/test_app.py::test_who_connects_and_asks_nothing_takes_no_place_of_who_asks"),
    Attempt(2, _JOB, "the same in its folder of secrets, without walls, so that its devices are never free", "the same",
            "tests/agent/test_folders.py::test_a_folder_of_secrets_goes_with_all_that_a_job_without_walls_put_there"),
    Attempt(2, _JOB, "an acknowledgement that ends the agent's part, as if the node had failed", "it is told as a bad one",
            "tests/agent/test_folders.py::test_an_acknowledgement_that_is_nested_too_deep_is_told_like_any_bad_one"),
    Attempt(2, _JOB, "the memory of the host's `/run`, through the folder of its secrets", "the folder is read-only",
            "tests/vault/test_end_to_end.py::test_a_secret_reaches_its_job_and_nobody_else", "wrote into"),
    Attempt(2, _JOB, "the same as a second team, on a node without walls", "one team is served there",
            f"{_FULL}::test_without_walls_one_team_is_served"),
    Attempt(7, _JOB, "device files that it was not granted, the disk", "a private `/dev`", _REACHES, "/dev/vda"),
    Attempt(7, _JOB, "making a device file", "no capabilities", _REACHES, "make_device"),
    # 8: what is seen
    Attempt(8, _TEAM, "every query and event for a word of another team", "answers are made for who asks",
            f"{_SIGHT}::test_what_blue_is_told_says_nothing_of_red"),
    Attempt(8, _JOB, "a log that is a link to somebody's file", "links are not followed",
            "tests/agent/test_logs.py::test_a_log_that_is_made_another_file_is_not_read"),
    Attempt(8, _JOB, "its own record rewritten, to name another team", "records lie where it cannot enter",
            "tests/agent/test_logs.py::test_a_job_cannot_say_whose_its_output_is"),
)  # fmt: skip


def table() -> str:
    """As Markdown."""
    lines = ["| # | finding | who | tries | why it fails | tried in |", "|---|---|---|---|---|---|"]
    for number, one in enumerate(ATTEMPTS, 1):
        path, _, name = one.test.partition("::")
        cells = (str(number), str(one.finding or ""), one.who, one.tries, one.why, f"`{path}`, `{name}`")
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def written(page: str) -> str:
    """The page with the table in its place."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
