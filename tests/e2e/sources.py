#!/usr/bin/env python3
"""Several sources in one watch: endpoints, ranks, streams of one socket; each
line says which one it is of.

ctest-timeout: 300
"""

import json
import signal
import subprocess
import sys
import time

from _command import (FIXTURES, LIMIT, Publisher, Running, main,
                      ports_to_keep, run)

FILE = str(FIXTURES / "sha256-int-defaults.jsonl")
OTHER = str(FIXTURES / "mp-chunked-sha256_cbor-bytes-seed0.jsonl")
TOTAL, OTHER_TOTAL = 10, 27


def objects(lines):
    return [json.loads(line) for line in lines]


def batches(found):
    return [o for o in found if o["kind"] == "batch"]


def until_live(publishers, *args):
    """Watch publishers until all are live, then interrupt; what it wrote."""
    replays = [x for p in publishers for x in ("-r", p.replay)]
    with Running("watch", *(p.live for p in publishers), *replays, *args) as \
            watcher:
        for publisher in publishers:
            watcher.wait_for(f"^source {publisher.live} recovering -> live: ")
        watcher.signal()
        assert watcher.end() == 130, watcher.err[-20:]
    return watcher.out, watcher.err


def say_until(publishers, lines, condition):
    """Publish lines(n), for n from 0 on, until the condition is true: a
    subscription takes its time, and until then batches reach nobody."""
    end = time.monotonic() + LIMIT
    n = 0
    while not condition():
        assert time.monotonic() < end, "the condition stays false"
        for publisher, line in zip(publishers, lines(n)):
            publisher.say(line)
        n += 1
        time.sleep(0.02)


def test_every_line_has_its_source():
    with Publisher(FILE) as one, Publisher(OTHER) as two:
        out, err = until_live([one, two], "--no-tokens")
    of = {one.live: [], two.live: []}
    width = max(map(len, of))
    assert out[-1] == "Interrupted", out[-1]
    for line in out[:-1]:
        source = line[:width].rstrip()
        assert source in of and line[width] == " ", line
        of[source].append(line[width + 1:])
    for publisher, total in (one, TOTAL), (two, OTHER_TOTAL):
        mine = of[publisher.live]
        assert mine[0].startswith("Listening for KV cache events on topic: ")
        got = [m for m in mine if m.startswith("Received event batch at ")]
        assert len(got) == total, mine
        assert f"source {publisher.live} recovering -> live: caught up" in err
    assert err[-1].startswith(f"{TOTAL + OTHER_TOTAL} batches, "), err[-1]
    assert err[-1].endswith("; sources: 2, live: 2"), err[-1]


def test_one_source_has_no_prefix():
    with Publisher(FILE) as publisher:
        done = run("watch", publisher.live, "-r", publisher.replay, "-n", "1",
                   "--timeout", "50")
    assert done.stdout.startswith("Listening for"), done.stdout
    assert done.stdout.splitlines()[1].startswith("Received event batch at")


def test_json_names_every_source():
    with Publisher(FILE) as one, Publisher(OTHER) as two:
        out, _ = until_live([one, two], "-f", "json", "--stats")
    found = objects(out)
    for publisher, total in (one, TOTAL), (two, OTHER_TOTAL):
        mine = [b for b in batches(found) if b["source"] == publisher.live]
        assert [b["seq"] for b in mine] == list(range(total)), mine
        assert all(b["snapshot"] is False and b["hidden"] is False
                   and "stream" not in b for b in mine)
    assert all(o["source"] in (one.live, two.live) for o in found[:-1])
    stats = found[-1]
    assert stats["kind"] == "stats", stats
    assert stats["counters"]["batches_delivered"] == TOTAL + OTHER_TOTAL
    assert stats["counters"]["batches_lost"] == 0, "zeros are printed, too"
    assert not any(name.startswith("batches_published")
                   for name in stats["counters"])
    assert {(s["source"], s["counters"]["batches_delivered"], s["state"])
            for s in stats["sources"]} == \
        {(one.live, TOTAL, "live"), (two.live, OTHER_TOTAL, "live")}


def test_stats_as_text_are_by_source():
    with Publisher(FILE) as one, Publisher(OTHER) as two:
        out, err = until_live([one, two], "--stats", "-f", "raw")
    err = "\n".join(err)
    for publisher, total in (one, TOTAL), (two, OTHER_TOTAL):
        at = err.index(f"  source {publisher.live}: live, last number "
                       f"{total - 1}, tail confirmed\n")
        part = err[at:].split("\n\n")[0]
        assert f"  batches_delivered        {total:10}  " in part, part
    for line in out:
        assert json.loads(line)["source"] in (one.live, two.live), line


def test_a_dead_endpoint_delays_nobody():
    """D14, on the command line: nobody listens at the first endpoint."""
    dead = f"tcp://127.0.0.1:{ports_to_keep(1)}"
    with Publisher(FILE) as one, Publisher(OTHER) as two:
        done = run("watch", dead, one.live, two.live, "-r", "none", "-r",
                   one.replay, "-r", two.replay, "-f", "json", "-n",
                   str(TOTAL + OTHER_TOTAL), "--timeout", "50")
    assert done.returncode == 0, done
    assert len(batches(objects(done.stdout.splitlines()))) == \
        TOTAL + OTHER_TOTAL
    assert len([x for x in done.stderr.splitlines() if dead in x]) <= 4


def test_one_of_a_host_goes():
    """D13: sources are told apart by their endpoints, not by their host. One
    is killed, the other goes on and keeps what it has."""
    line = json.dumps({"type": "BlockStored", "block_hashes": [1],
                       "token_ids": [1, 2], "block_size": 2})
    with Publisher("-", stdin=subprocess.PIPE) as one, \
            Publisher("-", stdin=subprocess.PIPE) as two:
        one.say(line)
        two.say(line)
        with Running("watch", one.live, two.live, "-r", one.replay, "-r",
                     two.replay) as watcher:
            for publisher in one, two:
                watcher.wait_for(f"^source {publisher.live} \\S+ -> live: ")
            one.signal(signal.SIGKILL)
            watcher.wait_for(f"^source {one.live}: disconnected$")
            two.say('{"type":"AllBlocksCleared"}')
            watcher.wait_for(f"^{two.live} .*AllBlocksCleared", watcher.out)
    assert not any(x.startswith((f"source {two.live}: forget",
                                 f"source {two.live}: disconnected"))
                   for x in watcher.err), watcher.err
    assert not any(x.startswith(f"source {one.live}: forget")
                   for x in watcher.err), watcher.err


def test_a_hint_for_each_that_is_silent():
    first = ports_to_keep(2)
    nobody = [f"tcp://127.0.0.1:{first}", "ipc:///tmp/kvevents-nobody.sock"]
    with Running("watch", *nobody) as watcher:
        for endpoint in nobody:
            watcher.wait_for(f"^source {endpoint}: (no publisher there yet; "
                             "waiting|not connected, trying again: )")
        watcher.signal()
        assert watcher.end() == 130
    assert watcher.err[-1].endswith("; sources: 2, live: 0"), watcher.err


def test_hints_for_many_that_are_silent():
    first = ports_to_keep(20)
    done = run("watch", f"tcp://127.0.0.1:{first}", "--ranks", "20",
               "--timeout", "6")
    lines = done.stderr.splitlines()
    assert done.returncode == 0 and len(lines) == 10, done
    assert lines[8] == ("12 more sources were not heard of yet; --stats says "
                        "which"), lines
    assert done.stdout.splitlines() == [
        f"tcp://127.0.0.1:{first + rank} Listening for KV cache events on "
        "topic: (all)" for rank in range(20)], done


def test_rules_for_replay():
    """:PORT and +N, one for all endpoints."""
    first = ports_to_keep(4)
    live = [f"tcp://127.0.0.1:{first + i}" for i in range(2)]
    replay = [f"tcp://127.0.0.1:{first + 2 + i}" for i in range(2)]
    with Publisher(FILE, endpoint=live[0], replay=replay[0]), \
            Publisher(FILE, endpoint=live[1], replay=replay[1]):
        done = run("watch", *live, "-r", "+2", "-f", "json", "-n",
                   str(2 * TOTAL), "--timeout", "50")
        assert done.returncode == 0, done
        got = batches(objects(done.stdout.splitlines()))
        assert [len([b for b in got if b["source"] == s]) for s in live] == \
            [TOTAL, TOTAL], done
        done = run("watch", live[0], "-r", f":{first + 2}", "-f", "json",
                   "-n", str(TOTAL), "--timeout", "50")
        assert done.returncode == 0, done


def test_ranks():
    """D3, D4: rank 0 is a rank; ports of ranks follow one another."""
    first = ports_to_keep(6)
    live, replay = (f"tcp://127.0.0.1:{first + i}" for i in (0, 3))
    line = json.dumps({"type": "AllBlocksCleared"})
    ranks = []
    try:
        for rank in range(3):
            ranks.append(Publisher("-", "--rank", str(rank), endpoint=live,
                                   replay=replay, stdin=subprocess.PIPE))
            ranks[rank].say(line)
        done = run("watch", live, "--ranks", "3", "-r", replay, "-f", "json",
                   "-n", "3", "--timeout", "50")
    finally:
        for publisher in ranks:
            publisher.__exit__()
    assert done.returncode == 0, done
    got = batches(objects(done.stdout.splitlines()))
    assert {(b["source"], b["rank"]) for b in got} == \
        {(f"tcp://127.0.0.1:{first + rank}", rank) for rank in range(3)}, got


def test_no_rank_is_not_rank_0():
    """D4: without --rank a batch names none, with --rank 0 it names 0."""
    for args, rank in ([], None), (["--rank", "0"], 0):
        with Publisher("-", *args, stdin=subprocess.PIPE) as publisher:
            publisher.say('{"type":"AllBlocksCleared"}')
            done = run("watch", publisher.live, "-r", publisher.replay, "-f",
                       "json", "-n", "1", "--timeout", "50")
        got = batches(objects(done.stdout.splitlines()))
        assert [b["rank"] for b in got] == [rank], done


def event(rank, hash_):
    return json.dumps({"events": [{"type": "BlockRemoved",
                                   "block_hashes": [hash_]}], "rank": rank})


def test_streams_of_a_socket_that_listens():
    """Two publishers connect to us, one of them speaks for two ranks. Each
    topic and rank is a source with an order of its own."""
    port = ports_to_keep(1)
    at = f"tcp://127.0.0.1:{port}"
    with Running("watch", at, "--bind", "yes", "-f", "json", "--stats") as \
            watcher:
        with Publisher("-", "--bind", "no", "-t", "kv@a", replay=False,
                       endpoint=at, stdin=subprocess.PIPE) as one, \
                Publisher("-", "--bind", "no", "-t", "kv@b", replay=False,
                          endpoint=at, stdin=subprocess.PIPE) as two:
            say_until([one, two], lambda n: (event(None, n), event(n % 2, n)),
                      lambda: len({b["stream"] for b in batches(objects(
                          list(watcher.out)))}) == 3)
            watcher.signal()
            assert watcher.end() == 130, watcher.err
    found = objects(watcher.out)
    streams = [o for o in found if o["kind"] == "notice"
               and o["type"] == "stream"]
    assert {s["stream"] for s in streams} == \
        {"kv@a", "kv@b/0", "kv@b/1"}, streams
    assert all(o["source"] == at for o in found[:-1])
    for b in batches(found):
        rank = "" if b["rank"] is None else f"/{b['rank']}"
        assert b["stream"] == b["topic"] + rank, b
    assert found[-1]["counters"]["streams"] == 3, found[-1]


def test_prefixes_of_streams():
    port = ports_to_keep(1)
    at = f"tcp://127.0.0.1:{port}"
    with Running("watch", at, "--bind", "yes") as watcher:
        with Publisher("-", "--bind", "no", "-t", "kv@a", replay=False,
                       endpoint=at, stdin=subprocess.PIPE) as publisher:
            say_until([publisher], lambda n: [event(3, n)],
                      lambda: any(x.startswith("kv@a/3   - BlockRemoved(")
                                  for x in list(watcher.out)))
            watcher.wait_for(f"^source {at} kv@a/3: new stream$")
            watcher.wait_for(r"^kv@a/3 Received event batch at ", watcher.out)
            watcher.wait_for(r"^kv@a/3   - BlockRemoved\(", watcher.out)


def test_streams_of_a_socket_that_connects():
    """All is one publisher's unless --streams split says otherwise."""
    with Publisher("-", "-t", "kv@a", stdin=subprocess.PIPE) as publisher:
        for args, streams in ([], {None}), (["--streams", "one"], {None}), \
                (["--streams", "split"], {"kv@a/0", "kv@a/1"}):
            with Running("watch", publisher.live, *args, "-f", "json") as \
                    watcher:
                def seen():
                    return [b.get("stream") for b in
                            batches(objects(list(watcher.out)))]

                say_until([publisher], lambda n: [event(n % 2, n)],
                          lambda: len(seen()) > 5)
                assert set(seen()) == streams, (args, watcher.err)


def test_too_many_streams():
    with Publisher("-", "-t", "kv@a", stdin=subprocess.PIPE) as publisher:
        with Running("watch", publisher.live, "--streams", "split",
                     "--max-streams", "2", "-f", "json", "--stats") as watcher:
            say_until([publisher], lambda n: [event(n % 4, n)],
                      lambda: any("streams_full" in x
                                  for x in list(watcher.out)))
            watcher.wait_for(f"^source {publisher.live}: too many streams, "
                             "further ones are dropped")
            watcher.signal()
            assert watcher.end() == 130
    stats = json.loads(watcher.out[-1])
    assert len(stats["sources"]) == 3, stats  # the endpoint and two streams
    assert stats["counters"]["streams_refused"] > 0, stats


if __name__ == "__main__":
    main(sys.modules[__name__])
