"""What experiments found before the simulation was there, and where each is shown now. A test is named `folder/file::test`,
as in the fault matrix; tests/architecture/test_matrix.py holds that each of them exists."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """`tests` cause it on real processes and servers; `besides`: what no simulation of messages and time can show, and why
    that is so."""

    what: str
    tests: tuple[str, ...]
    besides: str = ""

    def shown(self) -> str:
        """The cell of the table."""
        return "<br>".join([*([self.besides] if self.besides else []), *map(_place, self.tests)])


def _place(test: str) -> str:
    file, _, name = test.partition("::")
    return f"`tests/{file}.py::{name}`"


FINDINGS: dict[int, Finding] = {
    1: Finding(
        "a handful of jobs ends placement: what is told after a commit",
        ("services/test_telling::test_jobs_that_are_more_than_a_message_run",),
    ),
    2: Finding(
        "streams fill with what was consumed long ago",
        (
            "bus/test_trim::test_a_stream_takes_many_times_its_size_while_its_reader_keeps_up",
            "bus/test_trim::test_what_was_acknowledged_goes_and_what_another_has_not_read_stays",
            "ledger/test_inbox_trim::test_an_inbox_takes_many_times_its_size_and_the_next_writer_goes_on",
            "ledger/test_segments::test_a_full_segment_is_followed_by_another_and_readers_see_one_ledger",
            "ledger/test_fill::test_a_full_ledger_is_waited_for_and_nothing_is_decided_twice",
            "ledger/test_fill::test_people_are_kept_out_of_the_last_part_of_inbox_and_ledger",
        ),
    ),
    3: Finding(
        "compose cannot start",
        (
            "bus/test_sizes::test_a_server_with_composes_own_file_takes_all_streams",
            "bus/test_sizes::test_a_store_that_is_too_small_is_said_in_one_line_with_the_fix",
        ),
        "not simulated: sizes in files",
    ),
    4: Finding(
        "a broker outage of more than 10 s kills every job",
        (
            "core/test_leases::test_running_work_survives_five_minutes_unless_its_class_wants_to_move",
            "core/test_leases::test_work_that_is_kept_is_not_given_up_by_any_silence",
            "leases/test_service::test_the_right_is_a_record_and_a_renewal_writes_nothing",
            "leases/test_service::test_a_standby_takes_over_and_reports_nobody_whom_its_predecessor_may_have_renewed",
        ),
    ),
    5: Finding(
        "a new ledger event kind kills the fleet's work",
        (
            "leases/test_service::test_events_of_kinds_that_nobody_knows_stop_no_lease",
            "ledger/test_readers::test_0_1_0_reads_on_beside_the_present_writer_until_it_is_gone",
            "ledger/test_versions::test_0_1_0_reads_what_is_written_today",
        ),
    ),
    6: Finding(
        "snapshots of another version end a service",
        (
            "ledger/test_saver::test_every_reader_starts_beside_a_snapshot_of_another_version",
            "ledger/test_saver::test_a_save_that_fails_is_counted_and_tried_again_soon",
        ),
    ),
    7: Finding(
        "a node can be out for ever",
        (
            "services/test_telling::test_a_node_whose_life_was_over_before_its_agent_heard_of_it_begins_another",
            "services/test_telling::test_an_agent_with_a_restored_state_folder_goes_above_what_placement_knows",
        ),
    ),
    8: Finding(
        "a job outlives its release",
        (
            "agent/test_keeper_faults::test_nothing_gets_away_from_an_attempt_that_is_released",
            "agent/test_keeper_faults::test_when_agent_and_keeper_are_killed_their_jobs_end_at_once",
            "agent/test_quarantine::test_a_device_that_stays_busy_is_kept_from_jobs_until_it_is_free",
            "agent/test_quarantine::test_what_stays_in_quarantine_is_told_again",
        ),
        "processes are the kernel's",
    ),
    9: Finding(
        "good submits become dead letters",
        (
            "bus/test_busy::test_only_deliveries_that_reached_a_decision_count",
            "bus/test_busy::test_so_many_wait_and_the_others_are_told",
        ),
    ),
    10: Finding(
        "clocks that jump",
        (
            "ledger/test_writer::test_a_jump_of_the_brokers_clock_is_told_and_moves_no_time_also_over_a_restart",
            "core/test_clock::test_an_hour_with_a_jump_in_each_direction_is_billed_for_what_passed",
            "leases/test_service::test_ticks_are_new_messages_whatever_the_wall_clock_shows",
            "faults/test_clocks::test_a_clock_that_is_set_forward_and_back_ends_no_work_and_costs_nothing",
        ),
    ),
    11: Finding(
        "an error in a decision loops placement",
        (
            "ledger/test_writer::test_an_error_in_a_decision_rejects_the_input_at_fault_and_no_other",
            "ledger/test_writer::test_a_record_that_grows_too_large_is_decided_in_parts",
            "ledger/test_writer::test_an_input_that_leads_to_more_than_the_broker_takes_is_rejected",
        ),
    ),
    12: Finding(
        "a start is lost for good",
        ("services/test_telling::test_a_start_behind_hostile_acknowledgements_reaches_the_ledger",),
        "sizes in bytes",
    ),
    13: Finding(
        "the same key with two bodies within the ledger's lag",
        (
            "services/test_two_admissions::test_of_two_bodies_under_one_key_one_is_queued_and_the_other_is_refused",
            "services/test_one_answer::test_a_request_whose_acknowledgement_was_lost_has_the_answer_that_it_had",
            "services/test_one_answer::test_of_two_that_judge_a_request_at_once_one_answers",
        ),
        "the other tests: a request that two admissions judge differently",
    ),
    14: Finding(
        "a cancel before its submit",
        (
            "services/test_two_admissions::test_a_cancel_cancels_its_job_whichever_of_them_is_taken_up_first",
            "ledger/test_follower::test_a_large_state_is_saved_without_holding_up_the_event_loop",
            "bus/test_unanswered::test_what_expires_without_an_answer_is_counted_and_what_was_answered_is_not",
        ),
        "the other tests: 500,000 ended jobs; requests that expire",
    ),
    15: Finding(
        "questions starve under a backlog",
        ("core/test_questions::test_no_question_looks_at_more_jobs_because_more_wait",),
        "not simulated: virtual time has no CPU to run out of",
    ),
    16: Finding(
        "an agent's crash, restart or upgrade kills every job of its node",
        (
            "agent/test_keeper_faults::test_an_agent_that_is_killed_and_comes_back_costs_no_attempt",
            "agent/test_keeper_faults::test_an_agent_takes_over_in_place_from_one_of_another_version",
            "agent/test_keeper_faults::test_after_0_1_0_a_node_begins_above_its_life_with_nothing_of_it_left",
            "agent/test_keeper_faults::test_an_agent_that_comes_back_to_a_full_disk_costs_no_attempt",
            "agent/test_keeper_faults::test_a_node_that_cannot_begin_on_a_full_disk_waits_and_the_others_of_its_agent_go_on",
            "faults/test_keep_jobs::test_a_job_runs_on_while_everything_else_is_stopped",
        ),
    ),
    17: Finding(
        "two of everything",
        (
            "simulation/test_two_of_everything::test_no_more_than_five_seconds_pass_without_a_grant",
            "faults/test_two_of_everything::test_grants_go_on_when_one_of_each_is_killed",
            "faults/test_two_of_everything::test_nothing_is_doubled_by_those_that_were_frozen",
        ),
    ),
}
