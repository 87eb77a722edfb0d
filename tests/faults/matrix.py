"""The fault matrix: every fault that was thought of, and the tests that cause it or the reason why none does.

`python -m tests.faults.matrix` writes it into docs/reliability.md; tests/architecture/test_matrix.py holds it true. A test
is named `folder/file::test`; `sim: FAULT` is a fault of `libs.simulation.dst.faults`, in every thousand seeds; `chaos: FAULT`
one of `tests.faults.chaos.faults`, which needs a kernel and is caused by `./dev chaos --real` only.
"""

from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/reliability.md"
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"


@dataclass(frozen=True, slots=True)
class Row:
    """A fault; `tests` cause it; `open` says what of it no test causes, and why."""

    fault: str
    tests: tuple[str, ...] = ()
    open: str = ""


_SIM = "simulation/test_seeds_0::test_everything_is_right_in_the_end"

ROWS: tuple[Row, ...] = (
    Row("a service killed at each named step", (_SIM, "sim: kill"), ""),
    Row(
        "a random service killed again and again",
        (
            "faults/test_kill9::test_nothing_is_lost_or_done_twice_when_a_process_is_killed",
            "faults/test_two_of_everything::test_grants_go_on_when_one_of_each_is_killed",
            "chaos: service killed",
            "chaos: one of each service killed",
        ),
    ),
    Row(
        "two deciders at once",
        (
            "ledger/test_two_writers::test_two_writers_at_once_decide_everything_once",
            "faults/test_two_placements::test_the_other_goes_on_when_the_leading_one_is_killed",
        ),
    ),
    Row(
        "a decider frozen, then going on",
        (
            "faults/test_two_placements::test_a_leader_that_was_frozen_grants_nothing_from_its_old_view",
            "faults/test_two_of_everything::test_nothing_is_doubled_by_those_that_were_frozen",
            "sim: freeze",
            "chaos: service frozen",
        ),
    ),
    Row(
        "everything stands still, as when a machine sleeps",
        (
            "faults/test_time_limit::"
            "test_what_ends_while_everything_stands_still_is_billed_for_that_time_and_over_its_limit_as_ever",
            "faults/test_keep_jobs::test_what_ends_while_everything_is_stopped_is_billed_until_its_node_can_say_so",
            "ledger/test_writer::test_what_comes_before_the_first_tick_after_a_pause_is_decided_with_it",
        ),
    ),
    Row(
        "the decider away while jobs reach their time limits",
        (
            "faults/test_time_limit::test_nodes_end_what_is_over_its_limit_while_placement_is_frozen",
            "agent/test_keeper_faults::test_a_keeper_ends_what_is_over_its_time_limit_while_no_agent_is_there",
            "sim: freeze",
        ),
    ),
    Row(
        "the broker killed, one server",
        (
            "ledger/test_writer::test_kill_9_of_the_broker_again_and_again_loses_and_doubles_nothing",
            "sim: broker killed",
            "chaos: all brokers killed",
            "chaos: all brokers away",
            "chaos: all brokers away for five minutes",
        ),
    ),
    Row(
        "the broker's leader killed, three servers",
        (
            "faults/test_three_brokers::test_nothing_is_lost_or_done_twice_when_the_ledgers_leader_is_killed",
            "chaos: leader killed",
            "chaos: leader away",
            "chaos: server wiped",
            "ledger/test_segments::test_no_subject_goes_from_one_segment_to_another",
            "chaos: leader frozen while the ledger rolls",
        ),
    ),
    Row(
        "the broker frozen",
        (
            "sim: broker frozen",
            "chaos: leader frozen",
            "client/test_client::test_a_server_that_does_not_answer_is_said_to_who_wants_to_hear",
            "faults/test_time_limit::test_while_the_broker_is_frozen_time_goes_on",
        ),
        "the memory of real services meanwhile is bounded in `./dev chaos --real` only",
    ),
    Row(
        "Redis emptied, killed, restored from an old copy",
        (
            "faults/test_redis_emptied::test_an_emptied_redis_fills_again_under_load",
            "redis/test_projector::test_a_killed_server_is_filled_again_and_nothing_else_waits",
            "sim: redis",
            "chaos: redis emptied",
            "chaos: store killed",
        ),
    ),
    Row(
        "Redis shows an old state",
        ("faults/test_redis_emptied::test_an_old_state_is_noticed_and_replaced", "sim: redis"),
    ),
    Row(
        "MongoDB away, or slow",
        (
            "history/test_documents::test_mongodb_away_is_said_and_nothing_is_read",
            "history/test_documents::test_mongodb_killed_in_the_middle_loses_and_doubles_nothing",
            "history/test_documents::test_mongodb_frozen_in_the_midst_of_a_write_loses_and_doubles_nothing",
            "sim: mongo",
            "chaos: store frozen",
        ),
    ),
    Row(
        "each message repeated",
        ("sim: messages", "redis/test_projection::test_a_batch_that_comes_twice_or_overlaps_changes_nothing"),
    ),
    Row(
        "messages out of order, late, lost",
        (
            "sim: messages",
            "simulation/test_findings::test_a_tail_notices_that_the_last_delivery_was_lost",
            "agent/test_reconcile::test_over_any_network_each_attempt_starts_once_and_no_device_is_overfilled",
        ),
    ),
    Row(
        "a slow consumer",
        (
            "bus/test_trim::test_what_was_acknowledged_goes_and_what_another_has_not_read_stays",
            "bus/test_trim::test_a_stream_takes_many_times_its_size_while_its_reader_keeps_up",
            "sim: mongo",
        ),
    ),
    Row(
        "the disk full under the broker",
        (
            "bus/test_busy::test_a_full_inbox_is_waited_for_however_long_and_whoever_waits",
            "bus/test_outbox::test_a_full_stream_refuses_and_keeps_what_it_has",
            "sim: full disk",
            "faults/test_disk_full::test_what_was_acknowledged_outlives_a_full_disk_under_the_broker",
            "chaos: disk full under a broker",
            "chaos: slow fsync",
        ),
        "nats-server 2.15 does not go on by itself; `baton up` starts it again. Size its disk above what streams reserve",
    ),
    Row(
        "the disk full under Redis",
        ("faults/test_disk_full::test_a_full_disk_under_redis_is_waited_for", "chaos: disk full under Redis"),
        "with `appendfsync always` it would end; it is shipped without",
    ),
    Row("the disk full under MongoDB", ("faults/test_disk_full::test_a_full_disk_under_mongodb_is_waited_for",)),
    Row(
        "a node's disk full",
        (
            "sim: node disk full",
            "agent/test_keeper_native::test_output_beyond_the_limit_is_cut_with_a_line_that_says_so_and_the_job_goes_on",
            "agent/test_keeper_faults::test_a_keeper_starts_on_a_full_disk_and_is_found_although_it_could_not_write_who_it_is",
            "agent/test_keeper_faults::test_an_agent_that_comes_back_to_a_full_disk_costs_no_attempt",
            "agent/test_keeper_faults::"
            "test_a_node_that_cannot_begin_on_a_full_disk_waits_and_the_others_of_its_agent_go_on",
            "chaos: node's disk full",
        ),
    ),
    Row(
        "clocks jump",
        (
            "sim: clock",
            "ledger/test_writer::test_a_jump_of_the_brokers_clock_is_told_and_moves_no_time_also_over_a_restart",
            "faults/test_clocks::test_a_clock_that_is_set_forward_and_back_ends_no_work_and_costs_nothing",
            "leases/test_service::test_ticks_are_new_messages_whatever_the_wall_clock_shows",
        ),
    ),
    Row(
        "clocks run at different rates",
        (_SIM, "core/test_health::test_never_given_up_while_it_may_still_work"),
        "within what the terms of leases state (0.1 %); two per cent would need a larger setting",
    ),
    Row(
        "an agent cut off, also one way",
        ("sim: partition", "agent/test_agent::test_a_node_that_is_cut_off_stops_its_work_and_begins_a_new_life"),
    ),
    Row(
        "an agent frozen with running jobs",
        (
            "sim: freeze agent",
            "agent/test_keeper_faults::test_a_frozen_agents_jobs_end_with_its_lease",
            "chaos: agent frozen",
            "chaos: node frozen",
        ),
    ),
    Row(
        "an agent killed with running jobs, and started again",
        (
            "sim: kill agent",
            "agent/test_keeper_faults::test_an_agent_that_is_killed_and_comes_back_costs_no_attempt",
            "agent/test_keeper_faults::test_an_agent_that_does_not_come_back_loses_its_work_at_the_end_of_its_lease",
            "chaos: agent killed",
        ),
    ),
    Row(
        "agent and keeper killed together",
        (
            "agent/test_keeper_faults::test_when_agent_and_keeper_are_killed_their_jobs_end_at_once",
            "sim: power off",
            "chaos: agent and keeper killed",
            "chaos: keeper killed",
            "chaos: keeper frozen",
            "chaos: node switched off",
        ),
    ),
    Row(
        "a job that ignores SIGTERM, detaches, forks twice",
        (
            "agent/test_processes::test_a_job_that_ignores_sigterm_is_killed_after_its_grace",
            "agent/test_processes::test_a_daemon_that_detached_and_ignores_signals_is_gone_before_the_release",
            "agent/test_keeper_faults::test_nothing_gets_away_from_an_attempt_that_is_released",
        ),
    ),
    Row(
        "a device still busy after the kill",
        ("agent/test_quarantine::test_a_device_that_stays_busy_is_kept_from_jobs_until_it_is_free",),
    ),
    Row(
        "a GPU falls off the bus",
        (
            "agent/test_devices::test_a_board_that_fell_off_the_bus_is_not_offered",
            "agent/test_failures::test_a_device_that_no_longer_answers_is_why_the_job_failed",
        ),
        "kernel messages (XID) are not read",
    ),
    Row("a device comes back with another index", ("agent/test_devices::test_devices_are_made_visible_by_uuid",)),
    Row(
        "messages that are malformed in every way",
        (
            "faults/test_hostile_input::test_bad_messages_are_refused_with_a_reason_and_good_ones_run",
            "bus/test_messages::test_any_bytes_are_read_or_refused",
        ),
    ),
    Row(
        "messages that are too large",
        (
            "bus/test_outbox::test_a_message_that_is_too_large_is_refused_before_anything_is_sent",
            "ledger/test_writer::test_an_input_that_leads_to_more_than_the_broker_takes_is_rejected",
        ),
    ),
    Row(
        "poisonous messages among others",
        (
            "bus/test_settle::test_a_message_that_kills_its_handler_is_not_tried_for_ever",
            "ledger/test_writer::test_an_error_in_a_decision_rejects_the_input_at_fault_and_no_other",
        ),
    ),
    Row(
        "a burst of ten times the rate",
        (
            "bus/test_busy::test_so_many_wait_and_the_others_are_told",
            "bus/test_waiting::test_a_large_submit_goes_in_as_fast_as_it_is_answered",
            "admission/test_fair_queueing::test_the_window_follows_how_long_rounds_take",
        ),
        "rates are measured by benchmarks, not by tests",
    ),
    Row(
        "one team floods",
        (
            "bus/test_waiting::test_the_next_request_of_a_user_is_refused_and_no_other_users",
            "admission/test_service::test_a_crowd_of_one_teams_requests_holds_up_no_other_team",
            "admission/test_service::test_two_crowds_move_side_by_side",
            "bus/test_busy::test_a_loud_sender_drops_its_own_dead_letters_only",
            "walls/test_hostile::test_a_hostile_team_at_rate_harms_nobody",
        ),
        "latencies of the others are measured by benchmarks, not by tests",
    ),
    Row(
        "a credential revoked, or stolen",
        (
            "walls/test_attacks::test_an_answer_goes_nowhere_else",
            "walls/test_attacks::test_a_forged_credential_is_refused",
            "embedded/test_servers::test_nats_users_are_held_to_their_subjects",
            "embedded/test_revoked::test_a_revoked_credential_is_cut_off_and_kept_out",
            "chaos: credential revoked",
        ),
    ),
    Row(
        "old and new versions together",
        (
            "ledger/test_readers::test_0_1_0_reads_on_beside_the_present_writer_until_it_is_gone",
            "ledger/test_older_formats::test_0_1_0_reads_whatever_happens_and_its_bill_is_the_same",
            "agent/test_keeper_faults::test_an_agent_takes_over_in_place_from_one_of_another_version",
            "agent/test_keeper_faults::test_after_0_1_0_a_node_begins_above_its_life_with_nothing_of_it_left",
            "agent/test_keeper_faults::test_an_agent_of_0_1_0_begins_above_the_present_life_with_nothing_of_it_left",
            "agent/test_keeper_faults::test_an_older_agent_ends_a_keeper_with_which_it_has_no_version_in_common",
            "ledger/test_versions::test_0_1_0_stops_at_a_kind_that_it_does_not_know_and_harms_nothing",
        ),
    ),
    Row(
        "a record changed on disk",
        (
            "ledger/test_writer::test_forged_records_are_void_for_all_and_do_not_block_the_writer",
            "ledger/test_ledger_file::test_a_damaged_file_is_refused_with_its_line",
            "ledger/test_reader::test_a_stream_that_was_made_anew_stops_the_reader",
        ),
        "a bit flipped in the broker's own file is found by its checksum or by the chain",
    ),
    Row(
        "limits of streams set wrongly, purges, deletes",
        (
            "bus/test_streams::test_the_ledger_refuses_to_forget",
            "bus/test_streams::test_drift_is_listed_and_nothing_is_changed",
        ),
    ),
)


def table() -> str:
    """The matrix as Markdown."""
    lines = ["| fault | tests | not caused |", "|---|---|---|"]
    for row in ROWS:
        tests = "<br>".join(f"`{test}`" for test in row.tests)
        lines.append(f"| {row.fault} | {tests} | {row.open} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """docs/reliability.md with the present matrix."""
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
