"""Rules that live where the simulator does not look, broken on purpose: each until a unit test of its own fails.

``python -m tests.simulation.unit_mutations [rule ...]``; ``mutate`` plays these after those of the simulator. A test that cannot even be
collected tells nothing, so its mutant counts as not caught; and each test is run once with nothing broken.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "BK_MUTANT"
LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class UnitMutation:
    """``sound`` occurs once in the source of ``module``; ``broken`` stands there instead."""

    rule: str
    module: str
    sound: str
    broken: str
    test: str


_SUSPICION = "bk_core.protocol.session.suspicion", "tests/unit/session/test_suspicion.py"
_ADDRESSES = "bk_core.protocol.session.addresses", "tests/unit/session/test_addresses.py"
_ON_DEMAND = "bk_core.protocol.session.on_demand", "tests/unit/session/test_on_demand.py"
_OUTAGE = "bk_core.protocol.session.outage", "tests/unit/session/test_outage.py"
_REACH = "bk_core.protocol.session.reach", "tests/unit/session/test_reach.py"
_TIMES = "bk_core.protocol.log.times", "tests/unit/log/test_times.py"
_SHORTAGE = "bk_core.protocol.session.shortage", "tests/unit/session/test_shortage.py"
_GONE = "bk_core.protocol.bookie.suspicion", "tests/unit/bookie/test_suspicion.py"
_RULES = "bk_core.protocol.bookie.rules", "tests/unit/bookie/test_admission.py"
_ADMISSION = "bk_core.protocol.bookie.admission", "tests/unit/bookie/test_admission.py"
_ROOM = "bk_core.protocol.bookie.room", "tests/unit/bookie/test_room.py"
_CHANGE = "bk_core.protocol.ledger.write.ensemble_change", "tests/unit/ledger/test_writer_look.py"
_GUARDS, _CHECK = "tests/unit/client/test_log_guards.py", "tests/unit/client/test_log_check.py"
_IDENTITY = "bk_core.protocol.log.identity", "tests/unit/log/test_identity.py"
_LISTS = "bk_core.client.log.list_store", "tests/unit/log/test_created_again.py"
_ROOT = "bk_core.metadata.tree.cluster", "tests/unit/metadata/test_cluster_at_root.py"
_LISTING = "bk_core.protocol.bookie.reads", "tests/unit/bookie/test_listing.py"
_PATHS = "bk_core.protocol.files.paths", "tests/unit/files/test_paths.py"
_AUDITING = "bk_core.protocol.ledger.replication.auditing", "tests/unit/ledger/test_auditing.py"
_REPAIR = "bk_core.client.repair.jobs", "tests/unit/client/test_replication.py"
_TARGETS = "bk_core.client.repair.jobs", "tests/unit/client/test_replication_targets.py"
_GONE_LEDGER = "        if record is None:\n            return EntryListResponse(request.request_id, Status.NO_LEDGER, request.ledger_id)\n"


def _of(where: tuple[str, str], rule: str, sound: str, broken: str, test: str) -> UnitMutation:
    return UnitMutation(rule, where[0], sound, broken, f"{where[1]}::{test}")


UNIT_MUTATIONS: tuple[UnitMutation, ...] = (
    _of(
        ("bk_core.protocol.ledger.write.base", _CHANGE[1]),
        "RC-15 (close)",
        " and self._look is None",
        "",
        "test_a_recovery_does_not_close_during_the_look",
    ),
    _of(_CHANGE, "EC-6 (look)", "if not has_looked:", "if False:", "test_a_spare_that_the_look_finds_takes_the_place"),
    _of(
        _CHANGE,
        "EC-6 (one at a time)",
        "if not failures or self._look is not None:",
        "if not failures:",
        "test_nothing_is_decided_during_the_look",
    ),
    _of(
        _CHANGE,
        "EC-6 (anew)",
        "        self._look = None\n        return self._start_change(now_ns, has_looked=True)",
        "        return self._start_change(now_ns, has_looked=True)",
        "test_the_next_shortage_leads_to_another_look",
    ),
    _of(
        _CHANGE, "RC-15 (look)", "if not has_looked:", "if not has_looked and not self.recovering:", "test_a_recovery_looks_before_it_stops"
    ),
    _of(
        _SUSPICION,
        "SES-1 (batch)",
        " and kind not in _OPTIONAL_KINDS",
        "",
        "test_a_broken_connection_makes_a_suspect_but_that_of_batch_reads_does_not",
    ),
    _of(_SUSPICION, "SES-2 (silence)", " and status not in _SILENCE", "", "test_silence_does_not_end_it"),
    _of(
        _SUSPICION,
        "SES-3 (one)",
        "if not suspect.asked and suspect.probe_at_ns <=",
        "if suspect.probe_at_ns <=",
        "test_a_suspect_is_asked_after_the_time_and_again_while_it_is_silent",
    ),
    _of(_SUSPICION, "SES-4", " and bookie not in self._suspects", "", "test_further_breaks_do_not_prolong_it"),
    _of(
        _ADDRESSES,
        "SES-5",
        "Lookup(self._known.get(bookie), ask)",
        "Lookup(None, ask)",
        "test_the_last_known_address_is_taken_while_the_store_is_silent",
    ),
    _of(_ADDRESSES, "SES-6", "ask = bookie not in self._asked", "ask = True", "test_one_look_up_at_a_time"),
    _of(_ADDRESSES, "SES-6 (known)", "if not unreachable:", "if False:", "test_what_the_store_does_not_know_is_forgotten"),
    _of(_OUTAGE, "SES-7", "if self._since_ns is None:", "if True:", "test_an_outage_is_borne_for_the_whole_patience_and_the_next_one_anew"),
    _of(
        _OUTAGE,
        "SES-8",
        "if not self._was_there or self._lost_at_ns is not None:",
        "if not self._was_there:",
        "test_each_loss_and_each_return_is_said_once",
    ),
    _of(_OUTAGE, "SES-12", "self._patience_s *= 2", "pass", "test_each_new_connection_waits_longer_until_one_is_answered"),
    _of(_ON_DEMAND, "SES-13", "IDLE_NS if self.held else ", "", "test_a_session_is_kept_while_it_is_used_and_for_a_while_after"),
    _of(
        _SHORTAGE,
        "SES-9",
        "if status is not Status.UNAVAILABLE or self._everywhere_ns is None:",
        "if True:",
        "test_a_process_that_has_nothing_left_blames_no_bookie",
    ),
    _of(_AUDITING, "RR-16", "if not registered:", "if False:", "test_an_outage_marks_nothing"),
    _of(
        _AUDITING,
        "RR-16 (two)",
        "0 if len(away.keys() - self._marked.keys()) > 1 else delay_ns",
        "delay_ns",
        "test_two_that_are_away_are_lost_at_once",
    ),
    _of(_AUDITING, "RR-16 (answers)", "self._spared.get(bookie, now_ns)", "now_ns", "test_a_bookie_that_answers_has_a_minute_once"),
    _of(_AUDITING, "RR-16 (dead)", "len(away.keys() - self._marked.keys())", "len(away)", "test_a_dead_bookie_takes_no_other_ones_time"),
    _of(
        _AUDITING,
        "RR-16 (again)",
        "lost_ns if marked is None else marked + again_ns",
        "lost_ns",
        "test_a_bookie_is_lost_after_the_delay_and_its_ledgers_are_marked_once",
    ),
    _of(
        _AUDITING,
        "RR-16 (soon)",
        "if bookie in self._once else self._again_ns",
        "if False else self._again_ns",
        "test_ledgers_that_were_created_on_a_lost_bookie_are_marked_soon",
    ),
    _of(_AUDITING, "RR-17", "            known.failures += 1\n", "", "test_failures_are_tried_again_after_pauses_that_double"),
    _of(
        _AUDITING,
        "RR-18",
        "now_ns - known.tail_since_ns >= self._grace_ns",
        "True",
        "test_the_writer_of_an_open_ledger_has_its_time_once",
    ),
    _of(_AUDITING, "RR-19", "admitting > 0 or refusing == 0", "True", "test_a_client_that_all_refuse_does_not_begin"),
    _of(
        _AUDITING,
        "RR-19 (again)",
        "CHECK_AGAIN_NS << min(max(refused, 1) - 1, 30)",
        "CHECK_AGAIN_NS",
        "test_a_look_at_all_ledgers_that_bookies_refuse_is_taken_again_ever_more_seldom",
    ),
    _of(_SHORTAGE, "SES-10", "self._at_ns < since_ns or ", "", "test_only_what_failed_meanwhile_is_explained_by_it"),
    _of(
        _REACH,
        "SES-11",
        "return bool(found) and all(",
        "return bool(found) and any(",
        "test_only_what_refuses_is_unknown_or_at_odds_about_tls_everywhere_is_given_up_at_once",
    ),
    UnitMutation(
        "LOG-20",
        "bk_core.protocol.log.leader",
        'self._abdicate(f"ledger {self.current} was fenced or closed by another leader")\n            case _:  # LOG-8',
        "self._recover_current()\n            case _:  # LOG-8",
        "tests/unit/log/test_leader_serving.py::test_a_fence_means_somebody_took_over",
    ),
    UnitMutation(
        "LOG-19",
        "bk_core.protocol.log.ledger_list",
        '        if self.items:\n            raise LogSchemaError("the columns',
        '        if False:\n            raise LogSchemaError("the columns',
        "tests/unit/log/test_ledger_list.py::test_a_schema_is_replaced_only_with_all_rows",
    ),
    UnitMutation(
        "JAN-1 (intents)",
        "bk_core.client.log.intents",
        "node.created_ms or intent.created_ms",
        "intent.created_ms",
        "tests/unit/log/test_times.py::test_no_clock_of_a_host_makes_an_intent_old",
    ),
    _of(_TIMES, "JAN-3", "if ms > now_ms + SKEW_MS:", "if False:", "test_a_bound_beyond_the_clock_is_refused"),
    _of(
        _TIMES,
        "JAN-3 (handed on)",
        "low = before_ms if before_ms <= now_ms + SKEW_MS else 0",
        "low = before_ms",
        "test_the_time_of_a_commit",
    ),
    _of(
        _TIMES,
        "JAN-3 (said)",
        "return committed_at_ms > now_ms + SKEW_MS",
        "return False",
        "test_a_commit_time_that_cannot_be_is_said_and_not_handed_on",
    ),
    _of(_TIMES, "JAN-4", "return abs(host_ms - now_ms) > SKEW_MS", "return False", "test_a_host_with_a_wrong_clock_is_warned_about"),
    UnitMutation(
        "JAN-5",
        "bk_core.protocol.log.vanished",
        "in (Presence.ABSENT, Presence.ENDED)",
        "is not Presence.RUNNING",
        "tests/unit/log/test_vanished.py::test_what_is_certain",
    ),
    UnitMutation(
        "JAN-5 (place)",
        "bk_core.protocol.log.vanished",
        "bool(place.boot and started) and place == here",
        "bool(place.boot and started)",
        "tests/unit/log/test_vanished.py::test_what_is_certain",
    ),
    UnitMutation(
        "JAN-8",
        "bk_core.protocol.log.vanished",
        "return gone and (not awaited or age_ms >= grace_ms)",
        "return gone",
        "tests/unit/log/test_vanished.py::test_a_batch_that_is_about_to_be_committed_is_awaited_for_a_minute",
    ),
    UnitMutation(
        "JAN-6",
        "bk_core.protocol.log.ledger_list",
        "return mark.at_ms > 0 and any(",
        "return False and any(",
        "tests/unit/log/test_ledger_list.py::test_marks_of_queries_are_forgotten_if_the_log_says_so",
    ),
    UnitMutation(
        "JAN-7", "bk_core.protocol.log.list_size", "if size > size_max:", "if False:", f"{_CHECK}::test_a_list_full_of_marks_has_a_way_out"
    ),
    _of(_GONE, "BKE-1", "return all(sight is Sight.HOME", "return any(sight is Sight.HOME", "test_bke_1_every_look_counts"),
    _of(_GONE, "BKE-1 (foreign)", "if found is not None and found != signed:", "if False:", "test_bke_1_the_cluster_that_was_signed"),
    _of(
        _GONE, "BKE-2", "return count <= max(floor, share * held, told)", "return True", "test_bke_2_a_round_that_drops_much_has_to_be_told"
    ),
    _of(_GONE, "BKE-10", "if 2 * len(has) <= servers:", "if False:", "test_bke_10_most_servers_must_say_so"),
    _of(_GONE, "BKE-10 (one has it)", "if len(set(has)) > 1:", "if False:", "test_bke_10_most_servers_must_say_so"),
    _of(_RULES, "BKE-3", "return self.fence_unknown", "return True", "test_bke_3_fences_on_the_last_of_the_disk"),
    _of(_RULES, "BKE-4", "return waiting < self.polls_max", "return True", "test_bke_4_polls_wait_in_bounds"),
    _of(_RULES, "BKE-4 (time)", "return min(wanted_ms, self.poll_ms_max)", "return wanted_ms", "test_bke_4_polls_wait_in_bounds"),
    _of(_ADMISSION, "BKE-5", "if quiet.half_frame:", "if False:", "test_bke_5_what_ends_a_connection"),
    _of(
        _ADMISSION,
        "BKE-5 (door)",
        "if quiet.outside_s is not None and quiet.outside_s >= limits.stalled_s:",
        "if False:",
        "test_bke_5_what_ends_a_connection",
    ),
    _of(_ADMISSION, "BKE-6 (door)", "oldest_s >= limits.spare_s or ", "", "test_bke_6_strangers_make_room_first"),
    _of(_ADMISSION, "BKE-6", " if not quiet.waits and not quiet.unsent and", " if", "test_bke_6_who_makes_room"),
    _of(
        _LISTING,
        "BKE-7",
        "            listing.next_id = next_id\n            return None\n",
        "            listing.next_id = next_id\n            return self._list_piece(listing)\n",
        "test_bke_7_others_are_served_between_the_pieces",
    ),
    _of(
        _LISTING,
        "BKE-7 (gone)",
        _GONE_LEDGER,
        "        if record is None and listing.next_id:\n"
        "            return EntryListResponse(request.request_id, Status.OK, request.ledger_id, listing.encoder.blob())\n" + _GONE_LEDGER,
        "test_bke_7_a_ledger_that_is_gone_by_the_end_has_no_list",
    ),
    _of(_ROOM, "BKE-8", "reserve // _PARTS - look.pending", "reserve // _PARTS", "test_bke_8_what_is_pending_fits_outside"),
    _of(_ROOM, "BKE-8 (pages)", "3 * size + 4 * PAGE_BYTES", "size", "test_bke_8_nothing_takes_more_than_was_counted"),
    _of(_ROOM, "BKE-9", "scarce=look.outside < reserve // 2", "scarce=False", "test_b11_bke_3_bke_9_what_is_left_decides"),
    UnitMutation(
        "GRD-1",
        "bk_core.protocol.log.exclusive",
        'if listed.properties.entry_format == "arrow" and not insisted.arrow_entries:',
        "if False:",
        f"{_GUARDS}::test_other_bytes_do_not_get_into_a_log_of_arrow_entries",
    ),
    UnitMutation(
        "GRD-1 (queries)",
        "bk_core.protocol.log.exclusive",
        "return tuple(sorted(marked | {query for query in writing if query}))",
        "return ()",
        f"{_GUARDS}::test_a_log_of_queries_is_not_taken_over_by_the_way",
    ),
    UnitMutation(
        "GRD-2",
        "bk_core.client.deleting",
        "    if listed:\n",
        "    if False:\n",
        f"{_GUARDS}::test_a_listed_ledger_is_not_deleted_by_the_way",
    ),
    UnitMutation(
        "GRD-3",
        "bk_core.client.log.driver",
        "custom = {**tags, WRITER: self._tag}",
        "custom = {**tags}",
        f"{_GUARDS}::test_the_ledger_of_a_live_segment_says_who_writes_it",
    ),
    UnitMutation(
        "GRD-4",
        "bk_core.client.log.check",
        "if writer.state == ALIVE:",
        "if False:",
        f"{_CHECK}::test_a_log_whose_writer_lives_here_is_not_released",
    ),
    UnitMutation(
        "GRD-5", "bk_core.client.log.check", 'if problem.kind == "missing")', ")", f"{_CHECK}::test_what_exists_is_never_written_off"
    ),
    UnitMutation(
        "GRD-5 (numbers)",
        "bk_core.protocol.log.writing_off",
        "return emptied(item, stand_in) if item.ledger_id in missing else item",
        "return item",
        f"{_CHECK}::test_lost_ledgers_are_found_and_written_off",
    ),
    UnitMutation(
        "BAT-1",
        "bk_core.protocol.log.batches",
        "return Standing.NEXT if batch_id <= 0 else Standing.BEHIND_LOSS",
        "return Standing.NEXT",
        "tests/unit/spark/test_batch_order.py::test_a_mark_that_was_forgotten",
    ),
    UnitMutation(
        "BAT-1 (gap)",
        "bk_core.protocol.log.batches",
        "return Standing.NEXT if batch_id == mark.batch_id + 1 else Standing.BEHIND_LOSS",
        "return Standing.NEXT",
        "tests/unit/spark/test_batch_order.py::test_a_list_from_a_backup_lacks_batches",
    ),
    UnitMutation(
        "BAT-2",
        "bk_core.protocol.log.batches",
        "return Standing.DIFFERENT if known and (mark.rows, mark.bytes) != (rows, size) else Standing.SAME",
        "return Standing.SAME",
        "tests/unit/spark/test_batch_order.py::test_a_replay_that_differs_is_told_with_both_counts",
    ),
    UnitMutation(
        "GRD-6",
        "bk_core.protocol.log.password",
        "if not told or any(is_same(stored, given) for _, stored in told):",
        "if True:",
        f"{_GUARDS}::test_a_log_has_one_password",
    ),
    UnitMutation(
        "GRD-7",
        "bk_core.protocol.log.names",
        "if name is not None and not insisted:",
        "if False:",
        "tests/unit/client/file_store/test_deleted.py::test_grd_7_nobody_else_writes_the_log_of_a_store",
    ),
    UnitMutation(
        "GRD-7 (data)",
        "bk_core.client.deleting",
        'if custom.get("purpose") == PURPOSE and holds_files(client, name, ledger_id):',
        "if False:",
        "tests/unit/client/file_store/test_deleted.py::test_grd_7_a_data_ledger_is_deleted_by_its_store",
    ),
    UnitMutation(
        "META-15",
        "bk_core.protocol.ledger.metadata",
        "digest = None if self.has_digest else access.digest_type",
        "digest = access.digest_type",
        "tests/unit/metadata/test_metadata_codec.py::test_what_is_stored_is_not_replaced_by_what_a_caller_names",
    ),
    UnitMutation(
        "META-15 (later)",
        "bk_core.protocol.ledger.metadata",
        "        if digest is None and password is None:\n",
        "        if True:\n",
        "tests/unit/metadata/test_metadata_codec.py::test_what_a_caller_names_is_used_and_never_stored",
    ),
    UnitMutation(
        "RR-14",
        "bk_core.protocol.ledger.replication.draining",
        "if not named or (rounds and left_s <= 0):",
        "if not named:",
        "tests/unit/ledger/test_ledger_check.py::test_rr14_what_follows_a_look",
    ),
    UnitMutation(
        "RR-14 (one)",
        "bk_core.protocol.ledger.replication.draining",
        "(rounds and left_s <= 0)",
        "left_s <= 0",
        "tests/unit/ledger/test_ledger_check.py::test_rr14_what_follows_a_look",
    ),
    UnitMutation(
        "RR-15",
        "bk_core.protocol.ledger.replication.group",
        "len(self.exchanges) > self.fragments // GROUPS_PER_LEDGER",
        "len(self.exchanges) > 0",
        "tests/unit/ledger/test_ledger_check.py::test_rr15_a_group_is_due_by_number_and_by_bytes",
    ),
    _of(
        _TARGETS,
        "RR-20 (before)",
        "in self._leaving(copied, named=False)}",
        "in ()}",
        "test_rr20_copies_on_a_bookie_that_leaves_are_made_elsewhere",
    ),
    _of(
        _TARGETS,
        "RR-20 (after)",
        "late = self._leaving(copied, named=True)",
        "late = self._leaving({}, named=True)",
        "test_rr20_copies_on_a_bookie_that_leaves_are_made_elsewhere",
    ),
    _of(
        _TARGETS,
        "RR-20 (stays)",
        "        if not gone:\n            del",
        "        if False:\n            del",
        "test_rr20_a_bookie_that_took_the_copies_stays_where_no_other_does",
    ),
    _of(
        _TARGETS,
        "RR-20 (one of two)",
        "ensemble = tuple(standing.get(position, bookie) for position, bookie in enumerate(span.ensemble))",
        "ensemble = span.ensemble",
        "test_rr20_of_two_targets_of_a_fragment_one_leaves",
    ),
    _of(
        _TARGETS,
        "RR-20 (back)",
        "*self._options.lost, *span.ensemble}",
        "*self._options.lost}",
        "test_rr20_a_bookie_that_stood_there_and_is_back_is_no_target",
    ),
    _of(
        _TARGETS,
        "RR-20 (the next)",
        "if not named and one.before is None:",
        "if not named:",
        "test_rr20_the_bookie_that_takes_the_place_of_one_that_left_leaves_as_well",
    ),
    _of(
        _TARGETS,
        "RR-20 (forgotten)",
        "return [position for position in positions if span.ensemble[position] in known]",
        "return positions",
        "test_rr20_a_bookie_that_was_decommissioned_gets_no_place_back",
    ),
    UnitMutation(
        "RR-14 (last look)",
        "bk_core.client.repair.draining",
        "if report.still_named or report.writable or seen is _Seen.NOT:",
        "if True:",
        "tests/unit/client/test_replication.py::test_rr14_a_bookie_that_stops_during_the_last_look_is_looked_for_again",
    ),
    UnitMutation(
        "RR-14 (ended)",
        "bk_core.client.repair.draining",
        "if stopped or not process.unseen:",
        "if True:",
        "tests/unit/client/test_replication.py::test_decommission_keeps_the_cookie_where_nobody_can_tell_whether_the_process_has_ended",
    ),
    UnitMutation(
        "RR-16 (workers)",
        "bk_core.client.repair.autorecovery",
        "spared = frozenset(self._client.store.cookies()).difference(named)",
        "spared = frozenset()",
        "tests/unit/client/test_autorecovery.py::test_a_worker_without_an_auditor_beside_it_leaves_what_no_mark_names",
    ),
    UnitMutation(
        "RR-16 (follows)",
        "bk_core.client.repair.autorecovery",
        "            self._lost.marked(audit.lost, now_ns)\n            return",
        "            return",
        "tests/unit/client/test_autorecovery.py::test_who_does_not_audit_follows_and_asks_nobody",
    ),
    _of(_AUDITING, "RR-16 (took over)", "self._once |= self._marked.keys()", "pass", "test_who_takes_over_marks_once_more_what_was_marked"),
    _of(
        _ADDRESSES,
        "LINK-4 (late answer)",
        "if any(meet(address, taken) for taken in self._asked.get(bookie, ())):",
        "if False:",
        "test_an_answer_of_before_another_bookie_registered_there_does_not_count",
    ),
    _of(
        _ADDRESSES,
        "LINK-4 (known)",
        "if other == bookie or not meet(at, address)",
        "",
        "test_what_is_known_of_an_address_holds_no_more_when_another_bookie_registers_there",
    ),
    _of(
        _ROOT,
        "OWN-1",
        "raise NoClusterError(self._what_is_there())",
        'found = ""',
        "test_without_both_there_is_no_cluster",
    ),
    _of(
        _ROOT,
        "OWN-1 (old)",
        'f"{BY_ROOT}{created:x}"',
        '"root"',
        "test_a_cluster_is_its_instance_id_or_when_its_root_was_made",
    ),
    _of(_ROOT, "OWN-2", "elif self._had_layout:", "elif False:", "test_a_cluster_that_lost_its_layout_is_not_believed"),
    _of(_ROOT, "OWN-8", "said = self._said() or self._own", "said = found", "test_two_first_writers_decide_once_where_logs_lie"),
    _of(_ROOT, "OWN-10", "if self._first is not None:", "if False:", "test_the_cluster_of_the_first_look_is_the_only_one"),
    UnitMutation(
        "OWN-12",
        "bk_core.client.log.orphans",
        'value.get("cluster") == before',
        "False",
        "tests/unit/log/test_identity.py::test_what_lies_beside_a_list_is_adopted_with_it",
    ),
    UnitMutation(
        "OWN-12 (kept)",
        "bk_core.protocol.log.ledger_list",
        "adopted_from=(*self.adopted_from, *former)",
        "adopted_from=former",
        "tests/unit/log/test_identity.py::test_what_a_person_adopts_is_in_the_list",
    ),
    UnitMutation(
        "OWN-13",
        "bk_core.metadata.paths",
        "*above[:-1], *(",
        "*(",
        "tests/unit/bk_core/test_cli_words.py::test_where_a_new_cluster_would_lie_in_another",
    ),
    UnitMutation(
        "OWN-14",
        "bk_core.client.log.orphans",
        "ledger_id > last and not ledger_exists(client, ledger_id)",
        "False",
        "tests/unit/log/test_identity.py::test_a_list_of_ledgers_that_are_yet_to_be_made_is_not_adopted",
    ),
    UnitMutation(
        "OWN-5",
        "bk_core.client.log.intents",
        'intent.cluster in ("", here)',
        "True",
        "tests/unit/log/test_history.py::test_only_who_seals_in_this_cluster_is_waited_for",
    ),
    UnitMutation(
        "OWN-5 (forgotten)",
        "bk_core.client.log.intents",
        'intent.cluster in ("", client.store',
        'intent.cluster in (intent.cluster, "", client.store',
        "tests/unit/log/test_identity.py::test_an_intent_that_is_another_cluster_s_by_then_is_not_forgotten",
    ),
    UnitMutation(
        "OWN-5 (node)",
        "bk_core.client.files.nodes",
        "if node is not None and node.cluster == (",
        "if True or (",
        "tests/unit/client/file_store/test_opening.py::test_a_node_that_is_another_cluster_s_by_then_stays",
    ),
    UnitMutation(
        "OWN-5 (log)",
        "bk_core.client.log.janitor",
        "if i.log_id == log_id or (",
        "if True or (",
        "tests/unit/log/test_created_again.py::test_a_deletion_spares_the_log_that_was_created_again",
    ),
    _of(
        _LISTS,
        "OWN-7",
        "if (again.log_id, now) != (listed.log_id, version):",
        "if False:",
        "test_a_change_is_not_repeated_on_a_log_created_again",
    ),
    UnitMutation(
        "LINK-7 (asking where)",
        "bk_core.net.link",
        "        if self._asks_where:\n            self._found_at = address\n        else:\n            self._leave(",
        "        if True:\n            self._leave(",
        "tests/unit/net/test_link_moved.py::test_a_bookie_found_elsewhere_while_it_is_asked_for_is_waited_for",
    ),
    UnitMutation(
        "LINK-4 (looking up)",
        "bk_core.net.link",
        "            return self.address[1] == address[1]",
        "            return False",
        "tests/unit/net/test_link_moved.py::test_a_place_that_is_given_away_while_its_host_is_looked_up",
    ),
    UnitMutation(
        "LINK-4 (anew)",
        "bk_core.net.names",
        "if anew else self._under_way[host, port]).append(then)",
        "if False else self._under_way[host, port]).append(then)",
        "tests/unit/net/test_link_moved.py::test_a_name_is_looked_up_anew_when_its_place_was_given_away",
    ),
    UnitMutation(
        "RR-16 (vote)",
        "bk_core.metadata.tree.underreplication",
        "        if vote in self._votes or not self._is_mine(vote):\n            return False",
        "        return False",
        "tests/unit/metadata/test_underreplication.py::test_a_vote_whose_answer_was_lost_is_taken_when_it_is_seen",
    ),
    UnitMutation(
        "OWN-7 (janitor)",
        "bk_core.client.log.works",
        "write_list(self._client, self._name, effect.listed, effect.version, data)",
        'self._client.store.write(f"logs/{self._name}", data, effect.version)',
        "tests/unit/log/test_created_again.py::test_a_janitor_leaves_alone_what_was_created_again_while_it_deleted",
    ),
    UnitMutation(
        "LOG-13 (repairs)",
        "bk_core.protocol.log.reader_order",
        "if self._repairs != self.listed.repairs:",
        "if False:",
        "tests/unit/log/test_reader_order.py::test_rows_that_were_written_off_are_not_set_against_rows_that_were_not_read",
    ),
    UnitMutation(
        "LOG-18 (repair)",
        "bk_core.client.log.check",
        "if not all(ledger_exists(client, ledger_id) for ledger_id in (int(stand_in.ledger_id), *made)):",
        "if False:",
        f"{_CHECK}::test_what_a_janitor_took_away_during_a_repair_is_not_listed",
    ),
    UnitMutation(
        "OWN-3 (forgetting)",
        "bk_core.client.log.orphans",
        "if _is_of(stored.data, name, cluster, listed.log_id):",
        "if True:",
        "tests/unit/log/test_identity.py::test_forgetting_another_cluster_s_log_leaves_what_is_ours_under_the_name",
    ),
    _of(
        _LISTS,
        "OWN-7 (deletion)",
        "        if again.log_id != log_id:\n            return\n",
        "",
        "test_a_deletion_spares_the_log_that_was_created_again",
    ),
    _of(
        _IDENTITY,
        "OWN-3",
        "return Claim.OURS if listed.cluster == here else Claim.FOREIGN",
        "return Claim.OURS",
        "test_the_list_of_another_cluster_is_left_alone",
    ),
    _of(
        _IDENTITY,
        "OWN-4",
        "    if evidence.other:\n        return Claim.FOREIGN\n",
        "",
        "test_what_ledgers_say_of_a_list_that_says_nothing",
    ),
    _of(_PATHS, "FS-1 (parts)", '    if part in ("", ".", ".."):', "    if False:", "test_fs_1_other_paths_are_refused"),
    _of(_PATHS, "FS-1 (size)", "if size > PART_MAX:", "if False:", "test_fs_1_parts_and_paths_are_bounded_in_bytes"),
    UnitMutation(
        "FS-2",
        "bk_core.protocol.files.changes",
        "tree.longest_below(src) + grown > PATH_MAX",
        "byte_length(dst) > PATH_MAX",
        "tests/unit/files/test_changes.py::test_fs_2_a_rename_makes_no_path_too_long",
    ),
    UnitMutation(
        "FS-3 (checksum)",
        "bk_core.protocol.files.records",
        "!= checksum:",
        "is None:",
        "tests/unit/files/test_records.py::test_fs_3_a_record_with_a_byte_more_less_or_other_is_refused",
    ),
    UnitMutation(
        "FS-3 (base)",
        "bk_core.protocol.files.base",
        " or end.checksum != self._checksum",
        "",
        "tests/unit/files/test_replay.py::test_fs_3_a_base_is_believed_with_its_count_and_checksum_only",
    ),
    UnitMutation(
        "FS-3 (tree)",
        "bk_core.protocol.files.tree",
        "if (child is None) != (index >= there):",
        "if False:",
        "tests/unit/files/test_tree.py::test_fs_3_a_record_that_does_not_fit_is_refused",
    ),
    UnitMutation(
        "FS-14",
        "bk_core.protocol.files.data_ledgers",
        "if ledger_id in self._dropped:",
        "if False:",
        "tests/unit/files/test_data_ledgers.py::test_fs_14_a_dropped_ledger_is_never_referred_to_again",
    ),
    UnitMutation(
        "FS-19",
        "bk_core.protocol.files.changes",
        "(old.children is None) != (node.children is None)",
        "False",
        "tests/unit/files/test_changes.py::test_fs_19_a_rename_replaces_its_own_kind_alone",
    ),
    UnitMutation(
        "FS-20",
        "bk_core.protocol.files.tree",
        "kept, source.children = source.children, {}",
        "kept = source.children",
        "tests/unit/files/test_tree.py::test_fs_20_a_directory_takes_the_place_of_all_files",
    ),
    UnitMutation(
        "FS-21",
        "bk_core.protocol.files.base",
        "self._tree.latest_ms = max(self._tree.latest_ms, one.modified_ms)",
        "pass",
        "tests/unit/files/test_machine.py::test_fs_21_times_do_not_go_back_with_the_clock",
    ),
    UnitMutation(
        "FS-21 (now)",
        "bk_core.protocol.files.machine",
        "max(in_calendar(now_ms), self._next.latest_ms)",
        "in_calendar(now_ms)",
        "tests/unit/files/test_machine.py::test_fs_21_times_do_not_go_back_with_the_clock",
    ),
    UnitMutation(
        "FS-22",
        "bk_core.client.files.works",
        "self._confirm()",
        "pass",
        "tests/unit/client/file_store/test_deleted.py::test_fs_22_a_view_sees_the_change_that_let_go_of_a_ledger_before_that_is_deleted",
    ),
    UnitMutation(
        "FS-17",
        "bk_core.client.files.view",
        " and not self._is_trimmed",
        "",
        "tests/unit/client/test_file_view.py::test_fs_17_a_store_whose_owner_died_behind_a_trim_is_not_shown_as_empty",
    ),
    _of(_IDENTITY, "OWN-6", "is_named = custom.get(LOG_KEY) == name.encode()", "is_named = True", "test_how_a_ledger_stands_to_a_log"),
    _of(_IDENTITY, "OWN-11", "if adopted and is_unnamed(custom):", "if adopted:", "test_how_a_ledger_stands_to_a_log"),
    _of(_IDENTITY, "OWN-9", "traces.intended or ", "", "test_when_a_ledger_is_an_orphan"),
    UnitMutation(
        "LINK-4 (needed)",
        "bk_core.protocol.link.health",
        " and not needed",
        "",
        "tests/unit/link/test_health.py::test_other_connections_are_in_doubt",
    ),
    UnitMutation(
        "LINK-10",
        "bk_core.protocol.link.entrance",
        "return [self._say(StartTlsRequest(self._next()))] if self._tls else self._authenticate()",
        "return self._authenticate()",
        "tests/unit/link/test_entrance.py::test_tls_alone_is_three_steps_and_a_look",
    ),
    UnitMutation(
        "LINK-10 (refused)",
        "bk_core.protocol.link.entrance",
        "if response.status is not S.UNAUTHORIZED:",
        "if True:",
        "tests/unit/link/test_entrance.py::test_a_wrong_secret_is_told_apart_from_another_provider_at_once",
    ),
    UnitMutation(
        "LINK-10 (answers without an end)",
        "bk_core.protocol.link.entrance",
        "if self._answers > ANSWERS_MAX:",
        "if False:",
        "tests/unit/link/test_entrance.py::test_answers_without_an_end_break_the_protocol",
    ),
    UnitMutation(
        "LINK-7 (drop)",
        "bk_core.net.link",
        "if outcome[0] is not Status.OK and may_repeat and self._is_again(one, status):",
        "if False:",
        "tests/unit/net/test_link_health.py::test_a_silent_connection_is_dropped_and_the_others_of_its_bookie_are_in_doubt",
    ),
)


def run(tests: list[str], number: int | None) -> tuple[bool, bool, str]:
    """(one failed, all passed, the last lines) with that mutant, or with none."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # half of what a run takes
    plugin: list[str] = []
    if number is not None:
        environment[VARIABLE], plugin = str(number), ["-p", "tests.simulation.mutant"]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=line", "-p", "no:cacheprovider", "-p", "pytest_timeout", *plugin, *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S + 10 * len(tests))
    return done.returncode == 1 and " failed" in done.stdout, done.returncode == 0, (done.stdout + done.stderr)[-1500:]


def hunt_all(rules: list[str]) -> int:
    """Return how many mutations were not caught, and print a line for each."""
    missed = 0
    chosen = [(number, one) for number, one in enumerate(UNIT_MUTATIONS) if not rules or any(one.rule.startswith(rule) for rule in rules)]
    tests = list(dict.fromkeys(one.test for _, one in chosen))
    together = bool(tests) and run(tests, None)[1]  # one process for all of them; only if one fails, one for each
    sound = {test: together or run([test], None)[1] for test in tests}
    for number, one in chosen:
        begun = time.perf_counter()
        failed, _, told = run([one.test], number)
        caught = failed and sound[one.test]
        missed += not caught
        by = one.test.split("/")[-1] if caught else "NOT CAUGHT"
        print(f"{one.rule:18} {by}, {time.perf_counter() - begun:.1f} s", flush=True)
        if not caught:
            print(told)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.unit_mutations")
    parser.add_argument("rules", nargs="*", help="rules, or the beginning of their names; all if none")
    return 1 if hunt_all(parser.parse_args().rules) else 0


if __name__ == "__main__":
    sys.exit(main())
