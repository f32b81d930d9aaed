#!/usr/bin/env python3
"""What went wrong elsewhere is tested here.

Cases that were reported for other systems have numbers: A is the wire, as far
as a service shows it, B order, replay and restarts, C the meaning of an index,
D the network and operation, E speed and memory. For each the table names the
tests that show it is right here; this test checks that they are there. A case
that belongs to a part that is not built yet says to which.

    A20..A24  what consumers made of events
    B1..B26   order of one source, replay, restarts, snapshots
    C1..C42   what an index says after which events
    D1..D15   sockets, endpoints, endings, many sources
    E1..E9    what grows, and what is slow
"""

import re

from _sources import ROOT, finish, read

MACHINE = "tests/unit/stream/test_machine.c"
FIELD = "tests/unit/subscribe/test_field.c"
SUBSCRIBER = "tests/unit/subscribe/test_subscriber.c"
STREAMS = "tests/unit/subscribe/test_streams.c"
PUBLISHER = "tests/unit/publish/test_publisher.c"
SERVE = "tests/unit/publish/test_serve.c"
RESIDENCY = "tests/unit/publish/test_residency.c"
SNAPSHOT = "tests/unit/publish/test_snapshot.c"
ENDPOINT = "tests/unit/transport/test_endpoint.c"
BIND = "tests/unit/transport/test_bind.c"
CURVE = "tests/unit/transport/test_curve.c"
LIVE = "tests/unit/transport/test_live.c"
NAMES = "tests/unit/transport/test_names.c"
VLLM = "tests/interop/test_vllm_to_watch.py"
PYZMQ = "tests/interop/test_publish_to_pyzmq.py"
ASK = "tests/interop/test_snapshot_ask.py"
PROGRAM = "tests/interop/test_snapshot_serve.py"
LIVES = "tests/e2e/lives.py"
SOURCES = "tests/e2e/sources.py"
SNAPSHOTS = "tests/e2e/snapshots.py"
OPTIONS = "tests/e2e/options.py"
COPIES = "tests/unit/index/test_cases_copies.c"
CHAINS = "tests/unit/index/test_cases_chains.c"
HYBRID = "tests/unit/index/test_cases_hybrid.c"
LIVES_OF_INSTANCES = "tests/unit/index/test_lives.c"
INDEX_MEMORY = "tests/unit/index/test_memory.c"
INDEX_COMMAND = "tests/e2e/index_command.py"
INGEST = "tests/unit/ingest/test_sources.c"
TOPICS = "tests/unit/ingest/test_topics.c"
FLEET = "tests/unit/ingest/test_fleet.c"
RESTORE = "tests/unit/ingest/test_restore.c"

# Case, what it is, and its tests: a file and a name in it.
CASES = {
    "A20": ("events of pools", [
        ("tests/e2e/dynamo_client.py", "test_a20_events_of_pools")]),
    "A21": ("hashes above 2^53 in JSON", [
        ("tests/e2e/dynamo_client.py", "test_a21_hashes_of_every_form")]),
    "A22": ("an adapter's name among the extra keys", [
        ("tests/unit/hash/test_content.c", "test_adapters"),
        ("tests/unit/hash/test_content.c", "test_salts"),
        ("tests/unit/wire/test_cases.c", "test_cases_come_out_as_stated")]),
    "A23": ("cut and hostile payloads", [
        ("tests/unit/wire/test_cases.c", "test_cases_come_out_as_stated"),
        ("tests/unit/http/test_input_msgpack.c", "test_refused"),
        ("tests/e2e/http_hostile.py", "test_random_bodies")]),
    "A24": ("topics that name a worker", [
        (TOPICS, "test_a24_topics"), (TOPICS, "test_streams_by_host")]),
    "B1": ("a request that the publisher does not understand", [
        (SUBSCRIBER, "test_replay_shapes"), (VLLM, "lost_messages"),
        (VLLM, "bad_requests")]),
    "B2": ("replies with and without a topic", [
        (SUBSCRIBER, "test_replay_shapes"), (PYZMQ, "replay_shapes")]),
    "B3": ("late frames of an old request", [
        (MACHINE, '"late frames of an old request"'), (PYZMQ, "req_client")]),
    "B4": ("a replay longer than the high-water mark", [
        (SERVE, "test_a_slow_reader_gets_10000"),
        (SERVE, "test_a_slow_reader_gets_5000_large_ones"),
        (VLLM, "slow_reader"),
        (MACHINE, '"cut answers go on where they stopped"')]),
    "B5": ("a reader that stops amid its replay", [
        (SERVE, "test_a_stuck_reader_harms_nobody"),
        (SERVE, "test_requests_over_the_limit_are_refused"),
        (PYZMQ, "slow_reader")]),
    "B6": ("all sources replay at once, in pieces", [
        ("tests/unit/subscribe/test_slots.c", "test_b6_cut_answers")]),
    "B7": ("a restart without a replay endpoint", [
        (LIVES, "test_B7_numbers_that_fall"),
        (MACHINE, '"B7: a restart from zero without a replay endpoint"')]),
    "B8": ("a restart whose numbers do not fall", [
        (LIVES, "test_B8_numbers_that_go_on"),
        (MACHINE, '"B8: a restart that does not go backwards"')]),
    "B10": ("a replay that comes late", [
        (MACHINE, '"B10: a late answer changes nothing"'),
        (MACHINE, '"B10: replay times out, comes later"'),
        (SUBSCRIBER, "test_silent_replay")]),
    "B11": ("live and replay overlap", [
        (MACHINE, '"B11: live and replay overlap"'),
        (VLLM, "lost_messages")]),
    "B12": ("a snapshot whose number is behind", [
        (MACHINE, '"B12: one recovery for one gap"'),
        (ASK, "while_publishing")]),
    "B13": ("a small gap wipes nothing", [
        (LIVES, "test_B13_a_small_gap_wipes_nothing"),
        (MACHINE, '"B13: a small gap touches nothing else"')]),
    "B14": ("a gap older than the buffer", [
        (LIVES, "test_B14_a_gap_older_than_the_buffer"),
        (MACHINE, '"B14: a gap older than the buffer"'),
        (MACHINE, '"B14: history gone, a snapshot instead"'),
        (VLLM, "short_buffer"), (ASK, "gap_beyond_buffer")]),
    "B15": ("history that is gone is no passing error", [
        (MACHINE, '"B15: too far behind is no plain error"'),
        (SNAPSHOTS, "test_a_loss_is_mended_by_a_snapshot")]),
    "B16": ("a warm and idle engine", [
        (LIVES, "test_B16_a_warm_and_idle_engine"),
        (MACHINE, '"B16: warm and idle"'), (VLLM, "late_start"),
        (ASK, "late_idle")]),
    "B17": ("numbers are of what is received, not of what is shown", [
        (STREAMS, "test_three_publishers"),
        (PUBLISHER, "test_topics_are_filtered_by_their_reader")]),
    "B18": ("a batch that a full queue turned away", [
        (PUBLISHER, "test_a_full_queue_leaves_a_hole"),
        (PUBLISHER,
         "test_numbers_start_where_asked_and_skip_the_reserved_one")]),
    "B19": ("the last batch goes out by itself", [
        (PUBLISHER, "test_one_batch_goes_out_by_itself")]),
    "B21": ("a source that is registered again", [
        (COPIES, "test_b21_registered_again")]),
    "B22": ("snapshots: parents first, the dead last", [
        (RESIDENCY, "test_b22_hole_in_a_chain"), (PROGRAM, "program"),
        (COPIES, "test_b22_a_snapshot_with_a_hole"),
        (SNAPSHOTS, "test_a_late_reader_starts_from_a_snapshot")]),
    "B23": ("nothing comes back after a removal", [
        (COPIES, "test_b23_nothing_comes_back")]),
    "B24": ("a publisher that says it was reset", [
        (MACHINE, '"B24: reset, then zero"'),
        (MACHINE, '"B24: reset, then one, and the replay has no other"'),
        (STREAMS, "test_reset")]),
    "B25": ("a number that no replay has", [
        (MACHINE, '"B25: a number without a batch"'),
        (SUBSCRIBER, "test_permanent_hole"), (VLLM, "hole")]),
    "B26": ("a restart, and its proof has left the buffer", [
        (LIVES, "test_B26_numbers_that_go_on_and_no_proof"),
        (MACHINE, '"B26: the batch asked for is gone, and there is no id"')]),
    "C1": ("two copies of a block, one removal", [
        (COPIES, "test_c1_two_copies_of_a_block"),
        (COPIES, "test_c1_remaining_copies_win")]),
    "C2": ("reports of what is there already", [
        (COPIES, "test_c2_reports_of_what_is_there"),
        (INDEX_COMMAND, "test_copies_or_sets")]),
    "C3": ("chunks that overlap", [
        (COPIES, "test_c3_chunks_that_overlap"),
        (COPIES, "test_c3_counts_are_of_a_scope"),
        (RESIDENCY, "test_random_streams")]),
    "C4": ("a parent that comes later", [
        (CHAINS, "test_c4_a_parent_that_comes_later"),
        (CHAINS, "test_c4_two_generations_wait")]),
    "C5": ("a parent that is never announced", [
        (CHAINS, "test_c5_a_part_that_was_skipped")]),
    "C7": ("one hash for equal blocks", [
        (COPIES, "test_c7_one_hash_for_equal_blocks")]),
    "C8": ("a child of what was just removed", [
        (COPIES, "test_c8_a_child_of_what_was_just_removed")]),
    "C10": ("a removal is of one tier", [
        (COPIES, "test_c10_a_removal_is_of_one_tier")]),
    "C11": ("a tier is not reset by another one", [
        (COPIES, "test_c11_a_tier_is_not_reset_by_another")]),
    "C12": ("what a clear clears", [
        (COPIES, "test_c12_what_a_clear_clears"),
        (COPIES, "test_c12_what_is_like_a_clear_clears_nothing"),
        (COPIES, "test_c12_a_clear_of_one_owner"),
        (INDEX_COMMAND, "test_clear_scopes")]),
    "C13": ("a clear, and a new start", [
        (COPIES, "test_c13_a_clear_and_a_new_start")]),
    "C14": ("ranks are apart", [
        (COPIES, "test_c14_ranks_are_apart"), (INGEST, "test_c14_ranks"),
        ("tests/e2e/dynamo_client.py", "test_c14_ranks_come_and_go_alone"),
        (INDEX_COMMAND, "test_workers_and_ranks")]),
    "C15": ("a removal is of one group", [
        (HYBRID, "test_c15_a_removal_is_of_one_group")]),
    "C16": ("group 0 is not always the main one", [
        (HYBRID, "test_c16_group_0_is_not_the_main_one")]),
    "C17": ("checkpoints", [(HYBRID, "test_c17_checkpoints")]),
    "C18": ("a sliding window needs its end only", [
        (HYBRID, "test_c18_a_window_needs_its_end_only")]),
    "C19": ("adapters and salts do not mix", [
        (CHAINS, "test_c19_adapters_do_not_mix"),
        (CHAINS, "test_c19_a_salt_is_the_chains"),
        (INDEX_COMMAND, "test_adapters_salts_and_images")]),
    "C21": ("equal placeholders, other images", [
        (CHAINS, "test_c21_images_that_differ")]),
    "C22": ("block sizes are learnt", [
        (CHAINS, "test_c22_sizes_are_learnt"),
        (INGEST, "test_c22_block_size"),
        (INDEX_COMMAND, "test_instances")]),
    "C23": ("blocks smaller than expected, and rests", [
        (CHAINS, "test_c23_blocks_smaller_than_anything_expected")]),
    "C25": ("a chunk is there whole or not", [
        (CHAINS, "test_c25_a_chunk_is_there_whole_or_not")]),
    "C26": ("hashes finer than blocks", [
        (CHAINS, "test_c26_hashes_finer_than_blocks")]),
    "C27": ("prompts shorter than a block give no event", [
        ("docs/guide/asking.md", "announces whole blocks only"),
        (INDEX_COMMAND, "test_instances")]),
    "C28": ("a partial block that is stored again", [
        (COPIES, "test_c28_a_partial_block_again")]),
    "C29": ("a worker that comes again starts empty", [
        (COPIES, "test_c29_a_worker_that_comes_again_starts_empty"),
        (INGEST, "test_c29_new_life"), (RESTORE, "test_c29_moved"),
        ("tests/e2e/dynamo_client.py",
         "test_c29_a_worker_that_comes_again_is_empty")]),
    "C32": ("tokens are tokens, and no scores", [
        (COPIES, "test_c34_sums_over_tiers"),
        ("tests/e2e/dynamo_client.py",
         "test_c32_c34_tiers_are_cumulative_tokens"),
        (INDEX_COMMAND, "test_text_of_an_answer")]),
    "C33": ("hashes that differ between workers", [
        (CHAINS, "test_c33_hashes_that_differ_between_workers"),
        (INDEX_COMMAND, "test_questions_by_every_name")]),
    "C34": ("a tier alone, and sums over tiers", [
        (COPIES, "test_c34_sums_over_tiers"),
        ("tests/e2e/dynamo_client.py",
         "test_c32_c34_tiers_are_cumulative_tokens")]),
    "C35": ("children of what came without events", [
        (CHAINS, "test_c35_children_of_what_came_without_events")]),
    "C37": ("a limit, and what it makes the index forget", [
        (INDEX_MEMORY, "test_c37_a_limit_in_bytes"),
        (INDEX_MEMORY, "test_c37_what_is_in_use_stays"),
        (INDEX_COMMAND, "test_a_limit_of_memory")]),
    "C38": ("what is remote is nobody's own", [
        (COPIES, "test_c38_what_is_remote_is_not_its_own")]),
    "C40": ("a place that is taught later in the batch", [
        (CHAINS, "test_c40_the_place_is_taught_later_in_the_batch")]),
    "C41": ("tokens without extra keys off the GPU", [
        (CHAINS, "test_c41_tokens_without_keys_off_the_gpu"),
        ("tests/unit/hash/test_content.c", "test_other_media")]),
    "C42": ("a snapshot for sets", [
        (COPIES, "test_c42_a_snapshot_for_sets"),
        (COPIES, "test_c42_the_same_with_counts"),
        (RESIDENCY, "test_c42_copies")]),
    "D1": ("a full queue and publish", [
        (PUBLISHER, "test_a_full_queue_leaves_a_hole"),
        ("tests/unit/publish/test_queue.c",
         "test_full_of_items_leaves_a_hole")]),
    "D2": ("the end with a full queue", [
        (PUBLISHER, "test_shutdown_says_what_was_lost"),
        (PUBLISHER, "test_shutdown_keeps_its_limit_and_frees_the_port"),
        (SNAPSHOT, "test_shutdown_with_a_mute_reader"),
        (BIND, "test_port_is_free_after_close")]),
    "D3": ("ports of ranks", [
        (ENDPOINT, "test_ranks"), (ENDPOINT, "test_ranges"),
        (PUBLISHER, "test_port_0_stays_0_for_every_rank"),
        (OPTIONS, '"5557..5558", "5558..5559"'), (SOURCES, "test_ranks")]),
    "D4": ("rank 0 is a rank", [
        (SOURCES, "test_no_rank_is_not_rank_0"),
        (PUBLISHER, "test_no_rank_moves_nothing")]),
    "D6": ("who binds and who connects", [
        (ENDPOINT, "test_who_binds"),
        (PUBLISHER, "test_connecting_instead_of_binding"),
        (OPTIONS, '"tcp://0.0.0.0:0"')]),
    "D7": ("IPv6", [
        (ENDPOINT, "test_good_endpoints"), (LIVE, "test_kinds_of_endpoints"),
        (PYZMQ, "addresses")]),
    "D8": ("addresses that others can not reach", [
        ("tests/e2e/serve_options.py", "test_public_addresses_are_warned_of"),
        ("tests/unit/discover/test_targets.c",
         "test_what_files_may_not_say")]),
    "D9": ("a connection that is half open", [
        (FIELD, "test_d9_heartbeats_stop"),
        (FIELD, "test_d9_kernel_looks_for_dead_peers"),
        ("tests/fault/run.c", "Half open")]),
    "D10": ("a reader that stands still", [
        (FIELD, "test_d10_paused_reader"), (VLLM, "slow_live"),
        (PUBLISHER, "test_a_stuck_reader_costs_max_out_bytes_and_no_more")]),
    "D11": ("who can read", [
        (OPTIONS, '"--public"'),
        ("tests/e2e/serve_options.py", "test_public_addresses_are_warned_of"),
        (CURVE, "test_only_friends_get_in"),
        (CURVE, "test_bad_keys")]),
    "D12": ("an address in use", [
        (BIND, "test_taken_port_is_refused"),
        (PUBLISHER, "test_an_endpoint_in_use_is_named"),
        (OPTIONS, "test_a_port_in_use")]),
    "D13": ("several engines of one host", [
        (FIELD, "test_d13_same_host"), (INGEST, "test_d13_one_host"),
        (SOURCES, "test_one_of_a_host_goes")]),
    "D14": ("an endpoint where nobody is", [
        (FIELD, "test_d14_one_dead_one_slow"),
        (FLEET, "test_d14_one_dead"),
        ("tests/e2e/serve_fleet.py",
         "test_many_sources_of_which_some_are_dead"),
        (SOURCES, "test_a_dead_endpoint_delays_nobody"),
        (NAMES, "test_slow_name_delays_nobody")]),
    "D15": ("how far a source is", [
        ("tests/e2e/bad_input.py", "test_states_follow_each_other"),
        (SOURCES, "test_json_names_every_source"),
        (INGEST, "test_d15_progress"),
        ("tests/e2e/api_v1.py", "test_ready"),
        ("tests/e2e/serve_life.py", "test_recovery_limit")]),
    "E1": ("chains that come and go", [
        (INDEX_MEMORY, "test_e1_chains_that_come_and_go"),
        ("tests/unit/index/test_memory_long.c",
         "test_e1_ten_million_chains")]),
    "E3": ("no line for each event", [
        ("tests/e2e/serve_life.py", "test_lines_are_limited")]),
    "E5": ("packed bodies", [
        ("tests/unit/http/test_input_msgpack.c", "test_lists"),
        ("bench/run_service.py", '"/v1/query", "msgpack"')]),
    "E6": ("what a clear costs, and where a replay begins", [
        (LIVES_OF_INSTANCES,
         "test_a_drop_is_seen_at_once_and_drained_later"),
        ("tests/unit/publish/test_history.c",
         "test_start_is_inclusive_and_history_is_short")]),
    "E7": ("a large snapshot holds up nobody", [
        (SNAPSHOT, "test_at_full_speed"),
        (SNAPSHOT, "test_a_mute_reader")]),
    "E8": ("limits are in bytes", [
        (INDEX_MEMORY, "test_c37_a_limit_in_bytes"),
        (INDEX_MEMORY, "test_the_least_limit")]),
    "E9": ("memory while workers come and go, and prompts are placed", [
        ("tests/soak/service.py", "run"),
        ("tests/e2e/serve_memory.py", "service.run(")]),
}

# Cases of parts that are not built yet.
LATER = {
    "C9": "check: an engine that announces no removals; an age or a bound",
    "C36": "check: an engine that clears with each look-up (C13 obeys)",
    "C39": "simulate: blocks are visible after the step that computes them",
    "E4": "simulate: blocks of one token, an event each",
}

# Numbers that were never given.
NONE = {"B9", "B20", "C6", "C20", "C24", "C30", "C31", "D5", "E2"}


def is_there(name, text):
    """Whether a function of that name, or that text, is in a file."""
    if re.fullmatch(r"\w+", name):
        return re.search(rf"^(def )?{name}\(", text, re.M) is not None
    return name in text


def main():
    problems = []
    looked_at = 0
    for letter, last in ("B", 26), ("C", 42), ("D", 15), ("E", 9):
        for case in (f"{letter}{n}" for n in range(1, last + 1)):
            if case not in CASES and case not in LATER and case not in NONE:
                problems.append(f"{case}: no test, and no word of it")
    for case, (what, tests) in CASES.items():
        print(f"{case}: {what}")
        for path, name in tests:
            looked_at += 1
            if not (ROOT / path).is_file():
                problems.append(f"{case}: {path} is not there")
            elif not is_there(name, read(path)):
                problems.append(f"{case}: {path} has no {name}")
    for case, part in LATER.items():
        print(f"{case}: later, {part}")
    finish(problems, looked_at)


if __name__ == "__main__":
    main()
