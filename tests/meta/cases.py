#!/usr/bin/env python3
"""What went wrong elsewhere is tested here.

Cases that were reported for other systems have numbers: B is order, replay and
restarts, D the network and operation. For each the table names the tests that
show it is right here; this test checks that they are there. A case that
belongs to a part that is not built yet says to which.

    B1..B19, B22, B24..B26   order of one source, replay, restarts, snapshots
    D1..D15                  sockets, endpoints, endings, many sources
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

# Case, what it is, and its tests: a file and a name in it.
CASES = {
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
    "B22": ("snapshots: parents first, the dead last", [
        (RESIDENCY, "test_b22_hole_in_a_chain"), (PROGRAM, "program"),
        (SNAPSHOTS, "test_a_late_reader_starts_from_a_snapshot")]),
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
    "D9": ("a connection that is half open", [
        (FIELD, "test_d9_heartbeats_stop"),
        (FIELD, "test_d9_kernel_looks_for_dead_peers"),
        ("tests/fault/run.c", "Half open")]),
    "D10": ("a reader that stands still", [
        (FIELD, "test_d10_paused_reader"), (VLLM, "slow_live"),
        (PUBLISHER, "test_a_stuck_reader_costs_max_out_bytes_and_no_more")]),
    "D11": ("who can read", [
        (OPTIONS, '"--public"'), (CURVE, "test_only_friends_get_in"),
        (CURVE, "test_bad_keys")]),
    "D12": ("an address in use", [
        (BIND, "test_taken_port_is_refused"),
        (PUBLISHER, "test_an_endpoint_in_use_is_named"),
        (OPTIONS, "test_a_port_in_use")]),
    "D13": ("several engines of one host", [
        (FIELD, "test_d13_same_host"), (SOURCES, "test_one_of_a_host_goes")]),
    "D14": ("an endpoint where nobody is", [
        (FIELD, "test_d14_one_dead_one_slow"),
        (SOURCES, "test_a_dead_endpoint_delays_nobody"),
        (NAMES, "test_slow_name_delays_nobody")]),
    "D15": ("how far a source is", [
        ("tests/e2e/bad_input.py", "test_states_follow_each_other"),
        (SOURCES, "test_json_names_every_source")]),
}

# Cases of parts that are not built yet.
LATER = {
    "B21": "index: a source that is registered again starts anew",
    "B23": "index: nothing comes back after a removal",
    "D8": "service: the address it tells others is another one",
    "D15": "service: /ready is not /health (its first half is above)",
}

# Numbers that were never given.
NONE = {"B9", "B20", "D5"}


def is_there(name, text):
    """Whether a function of that name, or that text, is in a file."""
    if re.fullmatch(r"\w+", name):
        return re.search(rf"^(def )?{name}\(", text, re.M) is not None
    return name in text


def main():
    problems = []
    looked_at = 0
    for letter, last in ("B", 26), ("D", 15):
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
