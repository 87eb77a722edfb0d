"""What experiments found before the simulation was there, and where each is shown now."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """`besides`: tests elsewhere, of what no simulation of messages and time can show, and why that is so."""

    what: str
    besides: str = ""


FINDINGS: dict[int, Finding] = {
    1: Finding(
        "a handful of jobs ends placement: what is told after a commit",
        "sizes: `tests/services/test_telling.py::test_jobs_that_are_more_than_a_message_run`",
    ),
    2: Finding(
        "streams fill with what was consumed long ago",
        "`bus/test_trim::test_a_stream_takes_many_times_its_size_while_its_reader_keeps_up`, "
        "`ledger/test_inbox_trim::test_an_inbox_takes_many_times_its_size_and_the_next_writer_goes_on`, "
        "`ledger/test_segments::test_a_full_segment_is_followed_by_another_and_readers_see_one_ledger`",
    ),
    3: Finding(
        "compose cannot start",
        "not simulated: sizes in files. `bus/test_sizes::test_a_server_with_composes_own_file_takes_all_streams`",
    ),
    4: Finding("a broker outage of more than 10 s kills every job"),
    5: Finding(
        "a new ledger event kind kills the fleet's work",
        "`ledger/test_versions::test_0_1_0_reads_what_is_written_today`",
    ),
    6: Finding(
        "snapshots of another version end a service",
        "`ledger/test_saver::test_every_reader_starts_beside_a_snapshot_of_another_version`",
    ),
    7: Finding(
        "a node can be out for ever",
        "`tests/services/test_telling.py::test_a_node_whose_life_was_over_before_its_agent_heard_of_it_begins_another`, "
        "`tests/services/test_telling.py::test_an_agent_with_a_restored_state_folder_goes_above_what_placement_knows`",
    ),
    8: Finding("a job outlives its release", "processes are the kernel's: `agent/test_keeper_faults`"),
    9: Finding(
        "good submits become dead letters", "`bus/test_busy::test_only_deliveries_that_reached_a_decision_count`"
    ),
    10: Finding(
        "clocks that jump",
        "`ledger/test_writer::test_a_jump_of_the_brokers_clock_is_told_and_moves_no_time_also_over_a_restart`, "
        "`core/test_clock::test_an_hour_with_a_jump_in_each_direction_is_billed_for_what_passed`",
    ),
    11: Finding(
        "an error in a decision loops placement",
        "`ledger/test_writer::test_an_error_in_a_decision_rejects_the_input_at_fault_and_no_other`; records above 1 MiB: "
        "`ledger/test_writer::test_a_record_that_grows_too_large_is_decided_in_parts`",
    ),
    12: Finding(
        "a start is lost for good",
        "sizes in bytes: `tests/services/test_telling.py::test_a_start_behind_hostile_acknowledgements_reaches_the_ledger`",
    ),
    13: Finding(
        "the same key with two bodies within the ledger's lag",
        "`tests/services/test_two_admissions.py::test_of_two_bodies_under_one_key_one_is_queued_and_the_other_is_refused`",
    ),
    14: Finding(
        "a cancel before its submit",
        "`tests/services/test_two_admissions.py::test_a_cancel_cancels_its_job_whichever_of_them_is_taken_up_first`; "
        "500,000 ended jobs: "
        "`ledger/test_follower::test_a_large_state_is_saved_without_holding_up_the_event_loop`; requests that expire: "
        "`bus/test_unanswered::test_what_expires_without_an_answer_is_counted_and_what_was_answered_is_not`",
    ),
    15: Finding(
        "questions starve under a backlog",
        "not simulated: virtual time has no CPU to run out of. "
        "`core/test_questions::test_no_question_looks_at_more_jobs_because_more_wait`",
    ),
    16: Finding(
        "an agent's crash, restart or upgrade kills every job of its node",
        "`agent/test_keeper_faults::test_an_agent_that_is_killed_and_comes_back_costs_no_attempt`",
    ),
    17: Finding("two of everything", "`faults/test_two_of_everything::test_grants_go_on_when_one_of_each_is_killed`"),
}
