"""Mends of what was found, and the test of each that fails without it: rows of `tests.faults.undone`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Undone:
    """`mend` is the text of `file` that mends the finding, once in it; `without`: the same place as it was, or without it."""

    finding: str
    file: str
    mend: str
    without: str
    test: str


_LANES = "services/admission/overtaking.py"
_PACE = "services/admission/pace.py"
_OVERTAKING = "admission/test_overtaking"
_KEEPER = "agent/test_keeper_faults"
_TRIM = "history/test_trim"
_LEASES = "core/test_leases"
_CLOCK = "core/test_clock"
_VERIFY = "libs/core/projections/verify"
_LIES = "core/test_verify_lies::test_each_lie_is_found"

MENDS: tuple[Undone, ...] = (
    Undone(
        "1. what should run on a node is told in one message, however large: a handful of jobs ends placement for ever",
        "services/placement/teller.py",
        "self.limit = min(PIECE_BYTES, self.largest)",
        "self.limit = 1 << 30",
        "services/test_telling::test_jobs_that_are_more_than_a_message_run",
    ),
    Undone(
        "1. of small jobs on one device those whose specs come late are refused as old grants",
        "services/agent/wanted.py",
        "waits_for |= devices",
        "waits_for |= set()",
        "agent/test_wanted::test_what_was_granted_later_on_a_device_waits_for_a_part_whose_spec_is_not_known",
    ),
    Undone(
        "2. REQUESTS and an inbox fill with what was dealt with long ago",
        "libs/bus/trim.py",
        "pressed = fill_of(info) >= PRESSED or",
        "pressed = fill_of(info) >= 2 or",
        "bus/test_trim::test_what_was_dealt_with_stays_for_a_while_unless_the_stream_is_half_full",
    ),
    Undone(
        "2. the loudest team decides how far back all others can look",
        "services/history/trim.py",
        "if fill < TRIM_AT:",
        "if fill < 2:",
        f"{_TRIM}::test_a_loud_team_drops_its_own_events_only_and_its_follower_hears_of_it",
    ),
    Undone(
        "2. who goes on from a time is not told what was dropped meanwhile",
        "services/history/handlers.py",
        "event.previous_us > after_us",
        "event.previous_us > 1 << 62",
        f"{_TRIM}::test_gaps_are_told_per_pool_and_only_where_numbers_are_known",
    ),
    Undone(
        "2. events are looked for by the broker's clock although it was set back",
        "services/history/events.py",
        "max(0, after_us - lead_us)",
        "after_us",
        f"{_TRIM}::test_events_are_found_by_the_ledgers_time_when_the_brokers_clock_was_set_back",
    ),
    Undone(
        "3. compose reserves more than its file allows",
        "deploy/nats.conf",
        "max_file_store: 20GB",
        "max_file_store: 2GB",
        "bus/test_sizes::test_the_sizes_of_all_streams_stand_in_one_table_and_fit_into_what_is_allowed",
    ),
    Undone(
        "4. a broker outage of more than ten seconds kills every job",
        "libs/core/admission/evaluate.py",
        'default=f"{DEFAULT_LEASE_S:.0f}s",',
        'default="10s",',
        f"{_LEASES}::test_running_work_survives_five_minutes_unless_its_class_wants_to_move",
    ),
    Undone(
        "4. a lease of five minutes lasts 297 s from the renewal that was due",
        "schemas/jobs.py",
        "DEFAULT_LEASE_S = 330.0",
        "DEFAULT_LEASE_S = 300.0",
        "simulation/test_outage::test_work_outlives_five_minutes_without_a_control_plane",
    ),
    Undone(
        "4. silence ends work whose class says keep",
        "libs/core/scheduling/reactions/telemetry.py",
        "if 0 < job.lease_s <= ended_lease_s:",
        "if job.lease_s <= ended_lease_s:",
        f"{_LEASES}::test_work_that_is_kept_is_not_given_up_by_any_silence",
    ),
    Undone(
        "4. an operator's word frees what a node that is heard runs",
        "libs/core/scheduling/reactions/telemetry.py",
        "if d.may(said) and m.node not in d.state.silent:",
        "if False:",
        f"{_LEASES}::test_an_operator_may_declare_a_silent_node_dead_and_its_life_is_over_for_good",
    ),
    Undone(
        "4. an operator's word that is refused looks as if it counted",
        "libs/cli/decided.py",
        "raise refused(record.pool, event.reason)",
        "return True",
        "cli/test_operators::test_what_a_pool_refuses_does_not_end_with_0_and_says_why_and_what_to_do",
    ),
    Undone(
        "4. whom the keeper kills at the end of its lease seems to have ended by itself, when a renewal comes at that moment",
        "services/agent/processes.py",
        "self._lease_ended = self.launch.kept.doomed",
        "self._lease_ended = False",
        "agent/test_processes::test_whom_the_keeper_kills_at_the_end_of_its_lease_has_not_ended_by_itself",
    ),
    Undone(
        "5. an event of a kind that leases does not know stops all leases",
        "services/leases/app.py",
        ", only=NodeLives.handled",
        "",
        "leases/test_service::test_events_of_kinds_that_nobody_knows_stop_no_lease",
    ),
    Undone(
        "5. while older readers keep quarantines out of the ledger, refusals of a busy device end a job as lost",
        "libs/core/scheduling/reactions/attempts.py",
        "lost and _counts(d, attempt)",
        "lost",
        "core/test_retry::test_a_node_that_refuses_again_and_again_costs_a_job_nothing_while_nobody_can_be_told_why",
    ),
    Undone(
        "5. the same device is granted and refused a hundred times a second meanwhile",
        "services/agent/node.py",
        "if self._refusal_at <= now:",
        "if True:",
        "agent/test_quarantine::test_the_same_broken_device_is_refused_again_and_again_in_its_time_alone",
    ),
    Undone(
        "6. a snapshot of another version is read as if it were of this one",
        "libs/ledger/snapshots.py",
        "if slot.version != version:",
        "if False:",
        "ledger/test_snapshots::test_the_newest_of_its_own_version_is_loaded",
    ),
    Undone(
        "6. a state that cannot be written down ends its reader",
        "libs/ledger/saver.py",
        "            self._failed(position, error)\n            return\n        self._rest(began)\n",
        "            raise\n        self._rest(began)\n",
        "ledger/test_saver::test_a_state_that_cannot_be_written_down_is_a_failed_save_and_ends_nothing",
    ),
    Undone(
        "7. the clock does not bound a life's number: a restored folder gives one twice",
        "services/agent/state.py",
        "max(known.get(node, 0) + 1, now_s, above.get(node, 0) + 1)",
        "max(known.get(node, 0) + 1, above.get(node, 0) + 1)",
        "agent/test_agent::test_a_state_that_came_back_from_an_old_copy_gives_no_number_a_second_time",
    ),
    Undone(
        "7. placement's answer does not raise a life's number: a restored folder keeps the node out",
        "services/agent/state.py",
        "max(known.get(node, 0) + 1, now_s, above.get(node, 0) + 1)",
        "max(known.get(node, 0) + 1, now_s)",
        "services/test_telling::test_an_agent_with_a_restored_state_folder_goes_above_what_placement_knows",
    ),
    Undone(
        "8. a quarantine is told once: an older reader's ledger never hears of it",
        "services/agent/launcher.py",
        "        node.tell_quarantine_again()\n",
        "",
        "agent/test_quarantine::test_what_stays_in_quarantine_is_told_again",
    ),
    Undone(
        "9. facts have no room in an inbox that people have filled",
        "libs/bus/room.py",
        "if share > end:",
        "if share > 2:",
        "admission/test_service::test_people_leave_room_in_the_inbox_for_facts_and_are_told_when_to_come_again",
    ),
    Undone(
        "9. deliveries that found no room count, and a good submit becomes a dead letter",
        "libs/bus/settle.py",
        "return self.outcome in (_PARKED, _UNSTORED)",
        "return False",
        "bus/test_busy::test_only_deliveries_that_reached_a_decision_count",
    ),
    Undone(
        "9. a job for which there was no room is refused without its name: who follows it hears nothing",
        "services/admission/handlers.py",
        "        del self._jobs[job_id]\n",
        "",
        "admission/test_rejected_ids::test_a_job_for_which_there_was_no_room_is_refused_by_its_name_when_it_comes_again_and_counted_once",
    ),
    Undone(
        "9. deliveries that were given to another process count as if they had reached a decision",
        "libs/bus/settle.py",
        "await excused.excuse(received_of(message) for message in left)",
        "pass",
        "bus/test_settle::test_a_process_that_stood_still_stores_nothing_of_what_another_may_decide_by_now",
    ),
    Undone(
        "10. ledger time goes where the broker's clock is set",
        "libs/core/state/clock.py",
        "if abs(passed - elapsed) <= TOLERANCE_US + elapsed // RATE:",
        "if True:",
        f"{_CLOCK}::test_a_jump_moves_the_wall_clock_and_not_the_ledgers",
    ),
    Undone(
        "10. between two ticks an input takes ledger time along",
        "libs/core/state/clock.py",
        "t_us=self.t_us + min(max(0, step), STEP_US)",
        "t_us=self.t_us + max(0, step)",
        f"{_CLOCK}::test_an_input_between_two_ticks_cannot_take_the_ledger_along",
    ),
    Undone(
        "10. calendars do not follow a jump of the wall clock",
        "libs/core/state/clock.py",
        "if abs(add - (self._add[-1] if self._add else 0)) < NOTABLE_US:",
        "if self._add:",
        f"{_CLOCK}::test_an_hour_with_a_jump_in_each_direction_is_billed_for_what_passed",
    ),
    Undone(
        "11. an input that placement fails on holds up all others",
        "libs/ledger/culprits.py",
        'return replace(item, error="placement failed on it; its dead letter has the stack")',
        "return item",
        "ledger/test_writer::test_an_error_in_a_decision_rejects_the_input_at_fault_and_no_other",
    ),
    Undone(
        "11. a number that becomes infinite is stored as null, and no reader goes on behind that record",
        "schemas/base.py",
        'extra="ignore", allow_inf_nan=False',
        'extra="ignore"',
        "schemas/test_tolerance::test_no_number_becomes_infinite",
    ),
    Undone(
        "12. sizes of acknowledgements are not those of their bytes",
        "services/agent/reports.py",
        "if piece and (size + extra > most or len(piece) >= _BATCH_COUNT):",
        "if piece and len(piece) >= _BATCH_COUNT:",
        "services/test_telling::test_a_start_behind_hostile_acknowledgements_reaches_the_ledger",
    ),
    Undone(
        "13. of two bodies under one key the second is followed by silence",
        "libs/core/scheduling/reactions/__init__.py",
        "requests.refused(d, asked) if asked is not None else None",
        "None",
        "core/test_early_cancels::test_a_second_body_under_a_key_is_told_to_its_team_and_names_no_job",
    ),
    Undone(
        "13. an admission that was frozen says yes to what another has refused meanwhile",
        "libs/bus/outbox.py",
        "if held is not None and not held():",
        "if False:",
        "bus/test_settle::test_a_process_that_stood_still_stores_nothing_of_what_another_may_decide_by_now",
    ),
    Undone(
        "14. a cancel that comes before its submit is forgotten",
        "libs/core/scheduling/reactions/requests.py",
        "state.early_cancels.of(m.job_id, m.team, m.submitted_us)",
        "None",
        "core/test_early_cancels::test_a_submit_whose_cancel_came_first_is_answered_as_cancelled",
    ),
    Undone(
        "14. victims choose their own grace",
        "libs/core/scheduling/reactions/requests.py",
        "if spec.stop_grace_s > longest_grace_s:",
        "if False:",
        "core/test_early_cancels::test_no_job_has_more_grace_than_its_class_gives",
    ),
    Undone(
        "14. requests that expire without an answer are not counted",
        "libs/service/unanswered.py",
        "            if expires <= now:\n                self._expired",
        "            if expires <= 0:\n                self._expired",
        "bus/test_unanswered::test_what_expires_without_an_answer_is_counted_and_what_was_answered_is_not",
    ),
    Undone(
        "15. one team's crowd holds up all others",
        _LANES,
        "                self._pace.unsure = True\n                self._crowded.set()\n",
        "                pass\n",
        "admission/test_service::test_a_crowd_of_one_teams_requests_holds_up_no_other_team",
    ),
    Undone(
        "15. two crowds: the second waits for the whole first",
        _LANES,
        "                self._pace.unsure = True\n                self._crowded.set()\n",
        "                pass\n",
        "admission/test_service::test_two_crowds_move_side_by_side",
    ),
    Undone(
        "15. lanes without a bound",
        _LANES,
        "self.ahead.turns(self._wanted - {self._head}, _TEAMS - len(self.lanes))",
        "self.ahead.turns(self._wanted - {self._head}, 1000)",
        f"{_OVERTAKING}::test_so_many_teams_have_lanes_and_the_next_begin_when_those_are_idle",
    ),
    Undone(
        "15. a lane's bytes without a bound",
        "services/admission/lane.py",
        " or self.bytes >= self._page:",
        ":",
        f"{_OVERTAKING}::test_what_a_lane_holds_is_bounded_in_requests_and_bytes",
    ),
    Undone(
        "15. a costly request counts as any other",
        _LANES,
        "return 1 + (len(payload) + _HEADER_BYTES * len(headers or ())) // _HEAVY_BYTES",
        "return 1",
        f"{_OVERTAKING}::test_a_turn_takes_of_a_crowd_its_share_and_of_costly_requests_fewer",
    ),
    Undone(
        "15. behind a request that fails its team goes on out of its order",
        _LANES,
        "                    self._hold(team, received.stream_seq)\n                    break\n",
        "                    continue\n",
        f"{_OVERTAKING}::test_behind_a_request_that_fails_its_team_waits_for_the_queue",
    ),
    Undone(
        "15. who else sends something is not looked for before a crowd's large portion",
        _LANES,
        "                self._pace.unsure = True\n",
        "",
        f"{_OVERTAKING}::test_a_crowd_that_is_alone_moves_in_large_portions_once_that_is_known",
    ),
    Undone(
        "15. a crowd that lies undecided is none",
        _LANES,
        "left[-1].metadata.num_pending + len(left) + self._pace.undecided() > self._pace.few",
        "left[-1].metadata.num_pending + len(left) > self._pace.few",
        f"{_OVERTAKING}::test_what_lies_undecided_is_a_crowd_as_what_waits_is",
    ),
    Undone(
        "15. a window that is not used grows",
        _PACE,
        "elif under_way >= self.window / 2 and seconds <",
        "elif seconds <",
        f"{_OVERTAKING}::test_a_window_that_is_not_used_does_not_grow",
    ),
    Undone(
        "15. a slow machine passes for a busy one",
        _PACE,
        "(longest := max(_SLOW_S, _SLOW * idle_s))",
        "(longest := _SLOW_S)",
        f"{_OVERTAKING}::test_a_slow_machine_is_told_from_a_busy_one",
    ),
    Undone(
        "15. a round shrinks the window by a fixed part",
        _PACE,
        "self.window * max(_LEFT, longest / seconds)",
        "self.window * 0.9",
        f"{_OVERTAKING}::test_one_round_shrinks_the_window_as_much_as_it_was_too_long",
    ),
    Undone(
        "15. two admissions let in twice a team's rate",
        "services/admission/app.py",
        "intake.queued(event)",
        "pass",
        "admission/test_service::test_a_rate_holds_whichever_process_admits",
    ),
    Undone(
        "15. what services store together is synced one by one",
        "libs/bus/batches.py",
        "_FEWEST = 8\n",
        "_FEWEST = 1 << 30\n",
        "bus/test_outbox::test_batches_are_stored_together_and_acknowledged_each",
    ),
    Undone(
        "15. a batch that is refused as one is refused for good",
        "libs/bus/batches.py",
        "                single += batch\n",
        "                raise future.exception() or AssertionError\n",
        "bus/test_outbox::test_what_is_refused_as_a_batch_goes_one_by_one",
    ),
    Undone(
        "16. a keeper cannot start on a full disk: it has no file for its words",
        "services/agent/keeper/find.py",
        '        return Path(os.devnull).open("wb")\n',
        "        raise\n",
        f"{_KEEPER}::test_a_keeper_that_cannot_have_a_file_for_its_words_is_started_all_the_same",
    ),
    Undone(
        "16. a keeper that could not write who it is is not found",
        "services/agent/keeper/find.py",
        "for pid in (_written(folder), _listening(folder)):",
        "for pid in (_written(folder),):",
        f"{_KEEPER}::test_a_keeper_starts_on_a_full_disk_and_is_found_although_it_could_not_write_who_it_is",
    ),
    Undone(
        "16. an agent that must begin one node's life on a full disk ends, and with its lease what its others run",
        "services/agent/agent.py",
        '        except OSError as e:\n            log.error("no life can begin on %s until this is mended: %s", '
        '", ".join(node.name for node in nodes), e)\n            for',
        '        except ZeroDivisionError as e:\n            log.error("%s", e)\n            for',
        f"{_KEEPER}::test_a_node_that_cannot_begin_on_a_full_disk_waits_and_the_others_of_its_agent_go_on",
    ),
    Undone(
        "16. a process that does not get ready is killed in the midst of its end",
        "libs/embedded/supervisor.py",
        "            try:\n                await self._end(entry, final)\n            finally:",
        "            try:\n                if failed is not None and not entry.started.done():\n"
        "                    entry.started.set_exception(failed)\n                await self._end(entry, final)\n"
        "            finally:",
        "embedded/test_supervisor::test_a_process_that_never_gets_ready_has_its_time_to_end",
    ),
    Undone(
        "16. an agent on whose machine no process can be started waits for a job, and that fails",
        "services/agent/app.py",
        "raise find.NoKeeper(why)",
        'log.debug("%s", why)',
        "agent/test_keeper_native::test_without_the_program_an_agent_of_a_machine_does_not_start_and_says_what_to_do",
    ),
    Undone(
        "17. of two that tell teams, the one that was frozen moves the other's place back",
        "libs/bus/cursors.py",
        "(kv.update(key, body, last=last) if last else kv.create(key, body))",
        "kv.put(key, body)",
        "bus/test_leader::test_a_cursor_that_another_process_moved_is_not_moved_back",
    ),
    Undone(
        "17. who leads and hears nothing leads on beside its successor",
        "libs/bus/leader.py",
        "self._until = began + self._ttl_s * _TRUST",
        "self._until = began + self._ttl_s * 1000",
        "bus/test_leader::test_a_leader_without_a_broker_leads_no_longer_than_the_others_wait",
    ),
    Undone(
        "17. a claim of the right to grant leases that was not sent counts as made, and the next comes seconds later",
        "services/leases/app.py",
        "if self._caught_up() and not grants.ticks(at) and (claim := grants.claim(at)) is not None:",
        "if not grants.ticks(at) and (claim := grants.claim(at)) is not None and self._caught_up():",
        "leases/test_service::test_a_new_pool_has_a_granter_as_soon_as_the_ledger_is_read",
    ),
    Undone(
        "beyond: `ledger verify` passes over a chain that was broken",
        "libs/ledger/verify.py",
        "if found := break_before(head, entry):",
        'if found := "":',
        "ledger/test_ledger_file::test_a_file_whose_chain_was_broken_is_no_ledger_that_holds",
    ),
    Undone(
        "beyond: `ledger verify` sees no overrun where no tick was ever told",
        f"{_VERIFY}/clock.py",
        "self._mark.t_us if self._mark is not None else books.t_us - unticked_us",
        "self._mark.t_us if self._mark is not None else 0",
        _LIES,
    ),
    Undone(
        "beyond: `ledger verify` believes a successor a silence that it cannot know of",
        f"{_VERIFY}/nodes.py",
        "if self._deaf_us and self._now_us - int(silent_s * 1_000_000) < self._deaf_us:",
        "if False:",
        _LIES,
    ),
    Undone(
        "beyond: `ledger verify` takes anything for what follows an unfinished decision",
        f"{_VERIFY}/records.py",
        "if self._open is not None and anew and not (record.more or decided or seals):",
        "if False:",
        "core/test_verify_lies::test_what_follows_a_decision_that_is_not_at_its_end_is_of_it_or_decides_its_input_again",
    ),
    Undone(
        "beyond: `ledger verify` lets ninety-nine decisions begin that come to no end",
        f"{_VERIFY}/records.py",
        "_CUT_SHORT = 10",
        "_CUT_SHORT = 100",
        "core/test_verify_lies::test_no_decision_begins_for_ever",
    ),
)
