#!/usr/bin/env python3
"""kvevents index: what is read, what is asked, what is said.

The index itself has tests of its own; here it is the command around it: forms
of questions, workers and ranks, gaps and restarts in recordings, notices of
watch, dumps that are whole, and output in both forms.
"""

import collections
import json
import pathlib
import subprocess
import sys
import tempfile

from _command import FIXTURES, Publisher, lines_of, main, run, watch

NAMES = sorted(p.name for p in FIXTURES.glob("*.jsonl")
               if not p.name.endswith(".replay.jsonl")
               and p.name != "versions.jsonl")


def store(hashes, tokens, parent=None, size=4, **fields):
    return {"type": "BlockStored", "block_hashes": hashes,
            "parent_block_hash": parent, "token_ids": tokens,
            "block_size": size, **fields}


def remove(hashes, **fields):
    return {"type": "BlockRemoved", "block_hashes": hashes, **fields}


def batch(*events, **fields):
    return {"events": list(events), **fields}


class Files:
    """Files of lines, in a folder of their own."""

    def __init__(self, **files):
        self.folder = tempfile.TemporaryDirectory()
        self.paths = []
        for name, lines in files.items():
            path = pathlib.Path(self.folder.name) / f"{name}.jsonl"
            path.write_text("".join(json.dumps(line) + "\n"
                                    for line in lines))
            self.paths.append(str(path))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.folder.cleanup()

    def ask(self, *args, status=0, stderr=""):
        """The objects that --json prints."""
        done = run("index", "--json", *self.paths, *args)
        assert done.returncode == status, (args, done)
        if stderr is not None:
            assert done.stderr == stderr, (args, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def rows(self, *args, **expected):
        """{(worker, rank): row} of one answer, workers by their file."""
        answers = self.ask(*args, **expected)
        assert [a["kind"] for a in answers] == ["answer"], answers
        longest = [row["longest"] for row in answers[0]["rows"]]
        assert longest == sorted(longest, reverse=True), answers
        assert answers[0]["total"] == len(longest), answers
        return {(pathlib.Path(row["worker"]).stem, row["rank"]): row
                for row in answers[0]["rows"]}

    def longest(self, *args, **expected):
        return {who: row["longest"]
                for who, row in self.rows(*args, **expected).items()}


TOKENS = list(range(1, 13))
LIST = ",".join(map(str, TOKENS))


def test_questions_by_every_name():
    """Two engines that name the same blocks differently, one of them on two
    tiers."""
    with Files(a=[store([11, 12, 13], TOKENS)],
               b=[store(["aa" * 32, "bb" * 32], TOKENS[:8]),
                  store(["cc" * 32], TOKENS[8:], "bb" * 32),
                  store(["aa" * 32, "bb" * 32, "cc" * 32], [], size=0,
                        medium="CPU"),
                  remove(["bb" * 32, "cc" * 32])],
               c=[store([11], [9, 9, 9, 9])]) as files:
        want = {("a", 0): 12, ("b", 0): 12}
        rows = files.rows("--tokens", LIST)
        assert {who: row["longest"] for who, row in rows.items()} == want
        b = rows["b", 0]
        assert b["alone"] == {"gpu": 4, "cpu": 12, "disk": 0, "remote": 0,
                              "unknown": 0}, b
        assert b["upto"] == {"gpu": 4, "cpu": 12, "disk": 12}, b
        b = files.rows("--tokens", LIST, "--tiers", "disk,gpu")["b", 0]
        assert list(b["upto"].items()) == [("disk", 0), ("gpu", 4)], b
        assert b["longest"] == 12, b

        for form in ("[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]",
                     " ".join(map(str, TOKENS))):
            assert files.longest("-t", form) == want, form
        path = pathlib.Path(files.folder.name) / "prompt"
        path.write_text("[1, 2, 3,\n4, 5, 6]\n7 8\n9\n10\n11,12")
        assert files.longest("--tokens-file", str(path)) == want
        assert files.longest("-t", LIST + ",13,14") == want
        assert files.longest("-t", "1,2,3,4,5,6,7,9") == \
            {("a", 0): 4, ("b", 0): 4}
        assert files.rows("-t", "2,3,4,5") == {}
        assert files.longest("-t", LIST, "--recompute-last") == \
            {("a", 0): 8, ("b", 0): 8}

        hashes = run("hash", "-b", "4", LIST).stdout.split("\n")
        contents = ",".join(line.split()[0] for line in hashes if line)
        assert files.longest("--contents", contents) == want
        assert files.longest("--dynamo", contents) == want
        assert files.longest("--contents", contents, "-b", "4") == want
        assert files.longest("--hashes", "11,12,13") == \
            {("a", 0): 12, ("c", 0): 4}
        assert files.longest("--hashes", '["0xb", "12"]') == \
            {("a", 0): 8, ("c", 0): 4}
        assert files.longest("--hashes", "aa" * 32 + " " + "bb" * 32) == \
            {("b", 0): 8}

        answer, = files.ask("-t", LIST, "-n", "1")
        assert answer["total"] == 2 and len(answer["rows"]) == 1, answer
        assert answer["asked"] == 12 and answer["unit"] == "tokens", answer


def test_adapters_salts_and_images():
    image = {"extra_keys": [[["img", 2]], [["img", -2]]]}
    with Files(a=[store([1, 2], TOKENS[:8]),
                  store([3, 4], TOKENS[:8], lora_name="ad",
                        extra_keys=[["ad"], ["ad"]]),
                  store([5, 6], TOKENS[:8],
                        extra_keys=[["salt"], None])],
               b=[store([7, 8], TOKENS[:8], **image)]) as files:
        prompt = ["-t", LIST]
        assert files.longest(*prompt) == {("a", 0): 8}
        assert files.longest(*prompt, "--lora", "ad") == {("a", 0): 8}
        assert files.longest(*prompt, "--salt", "salt") == {("a", 0): 8}
        assert files.rows(*prompt, "--lora", "other") == {}
        assert files.rows(*prompt, "--salt", "other") == {}
        assert files.longest(*prompt, "--image", "img@2+4") == {("b", 0): 8}
        assert files.longest(*prompt, "--image", "img@2+2") == {("b", 0): 4}
        assert files.rows(*prompt, "--image", "im@2+4") == {}


def test_copies_or_sets():
    with Files(a=[store([1, 2], TOKENS[:8]), store([1, 2], TOKENS[:8]),
                  remove([2])]) as files:
        assert files.longest("-t", LIST) == {("a", 0): 8}
        assert files.longest("-t", LIST, "--set") == {("a", 0): 4}


def test_clear_scopes():
    lines = [batch(store([1], TOKENS[:4]),
                   store([1], TOKENS[:4], medium="CPU", extra_keys=[None]),
                   {"type": "AllBlocksCleared"}, **fields)
             for fields in ({}, {"publisher_id": "00" * 16})]
    for line, scope, left in ((0, "default", 0), (1, "default", 4),
                              (0, "gpu", 4), (1, "all", 0)):
        with Files(a=[lines[line]]) as files:
            got = files.longest("-t", LIST, "--clear-scope", scope)
            assert got == ({("a", 0): left} if left else {}), (line, scope)


def test_workers_and_ranks():
    with Files(a=[{**batch(store([1], TOKENS[:4]), rank=rank), "seq": 0,
                   "topic": topic, "source": source}
                  for rank, topic, source in (
                      (0, "t", "s1"), (1, "t", "s1"), (0, "u", "s2"))]) \
            as files:
        assert set(files.rows("-t", LIST)) == {("a", 0), ("a", 1)}
        assert set(files.rows("-t", LIST, "--worker-from", "topic")) == \
            {("t", 0), ("t", 1), ("u", 0)}
        assert set(files.rows("-t", LIST, "--worker-from", "source")) == \
            {("s1", 0), ("s1", 1), ("s2", 0)}


def test_gaps_are_said():
    def at(seq, *events):
        return {**batch(*events), "seq": seq}

    with Files(a=[at(3, store([1], TOKENS[:4])), at(4),
                  at(7, store([2], TOKENS[4:8], 1)), at(7), at(5)]) as files:
        path = files.paths[0]
        said = (f"{path}:3: gap: 5..6 are missing\n"
                f"{path}:4: number 7 was there before; passed over\n"
                f"{path}:5: number 5 was there before; passed over\n"
                "kvevents index: 3 batches; 1 gaps: what was removed in them "
                "is still there\n")
        assert files.longest("-t", LIST, stderr=said) == {("a", 0): 8}


def test_a_restart_forgets():
    with Files(a=[{**batch(store([1, 2], TOKENS[:8])), "seq": 0},
                  {**batch(), "seq": 1},
                  {**batch(store([1], TOKENS[:4])), "seq": 0}]) as files:
        said = (f"{files.paths[0]}:3: number 0 behind 1: it started anew; its "
                "blocks are forgotten\n")
        assert files.longest("-t", LIST, stderr=said) == {("a", 0): 4}


def notice(kind, source="s"):
    return {"kind": "notice", "type": kind, "source": source}


def test_notices_of_watch():
    def line(event, hidden=False, source="s"):
        return {**batch(event), "kind": "batch", "source": source,
                "hidden": hidden}

    first = line(store([1, 2, 3], TOKENS))
    other = line(store([1, 2, 3], TOKENS), source="o")
    new = line(store([1], TOKENS[:4]), True)
    for notices, left in (
            ([notice("clear")], None),
            ([notice("begin"), new, notice("swap")], 4),
            ([notice("begin"), new, notice("abort")], 12),
            ([notice("begin"), new, notice("begin"), notice("swap")], None),
            ([notice("begin"), notice("swap")], None),
            ([notice("state"), {"kind": "stats"}], 12)):
        with Files(a=[first, other, *notices]) as files:
            want = {("o", 0): 12, **({("s", 0): left} if left else {})}
            got = files.longest("-t", LIST, "--worker-from", "source")
            assert got == want, (notices, got)


def test_twins_without_notices():
    """Raw lines say what is hidden, and no more."""
    def line(event, **fields):
        return {**batch(event), **fields}

    first = line(store([1, 2, 3], TOKENS))
    new = line(store([1], TOKENS[:4]), hidden=True)
    with Files(a=[first, new, line(store([2], TOKENS[4:8], 1))]) as files:
        assert files.longest("-t", LIST) == {("a", 0): 8}
    with Files(a=[first, new]) as files:
        said = (f"{files.paths[0]}:2: ends before its twin is complete; what "
                "was known before it stays\n")
        assert files.longest("-t", LIST, stderr=said) == {("a", 0): 12}


def test_watch_and_index():
    """What watch prints of a live publisher, json and raw, is what the file
    holds."""
    path = FIXTURES / "hybrid-gemma3-sha256_cbor-bytes-seed0.jsonl"
    wanted = held_by_events(lines_of(path))
    for form in "json", "raw":
        with Publisher(str(path)) as publisher:
            seen = watch(publisher, "-f", form, "-n",
                         str(len(lines_of(path))), "--timeout", "30")
        done = run("index", "-", "--dump", "--json", stdin=seen.stdout)
        assert done.returncode == 0 and done.stderr == "", done
        assert held_by_dump(done.stdout) == {0: wanted[0]}, form


# ---------------------------------------------------------------------------
# Dumps


def name_of(value):
    return value["$bytes"] if isinstance(value, dict) else str(value)


def held_by_events(lines):
    """{rank: {(group, hash): copies}} of a recording, by the letter."""
    out = {}
    for line in lines:
        _, events, *rank = line["wire"]
        copies = out.setdefault((rank and rank[0]) or 0,
                                collections.Counter())
        for event in events:
            if event["type"] == "AllBlocksCleared":
                copies.clear()
                continue
            for value in event["block_hashes"]:
                key = event.get("group_idx"), name_of(value)
                copies[key] += 1 if event["type"] == "BlockStored" else -1
                if copies[key] <= 0:
                    del copies[key]
    return {rank: dict(copies) for rank, copies in out.items()}


def held_by_dump(text):
    out, ids = {}, set()
    for run_ in map(json.loads, text.splitlines()):
        assert run_["kind"] == "run", run_
        who = run_["worker"], run_["rank"]
        assert run_["parent"] == 0 or (*who, run_["parent"]) in ids, run_
        assert (*who, run_["id"]) not in ids, run_
        ids.add((*who, run_["id"]))
        held = out.setdefault(run_["rank"], {})
        if run_["taught"]:
            assert len(run_["contents"]) == run_["n_blocks"], run_
        for scope in run_["held"]:
            assert len(scope["hashes"]) == len(scope["copies"]) == \
                (run_["n_blocks"] or len(scope["copies"])), run_
            for value, n in zip(scope["hashes"], scope["copies"]):
                assert (value is None) == (n == 0), scope
                if n:
                    held[scope["group"], value] = n
    return out


def test_dump_of_every_recording():
    assert len(NAMES) >= 15, NAMES
    for name in NAMES:
        done = run("index", str(FIXTURES / name), "--dump", "--json")
        assert done.returncode == 0 and done.stderr == "", (name, done)
        wanted = held_by_events(lines_of(FIXTURES / name))
        got = held_by_dump(done.stdout)
        assert got == {rank: held for rank, held in wanted.items() if held}, \
            name
        text = run("index", str(FIXTURES / name), "--dump").stdout
        assert text.count("\n  run ") == len(done.stdout.splitlines()), name


def test_dump_says_where_blocks_stand():
    with Files(a=[store([1, 2], TOKENS[:8]), store([3], TOKENS[8:], 99),
                  store([4], [], size=0, medium="CPU"),
                  store([5], TOKENS[:4], lora_name="ad",
                        extra_keys=[["ad", "salty"]])]) as files:
        runs = files.ask("--dump")
        place = {run_["held"][0]["hashes"][0]: run_ for run_ in runs}
        assert place["1"]["rooted"] and place["1"]["n_blocks"] == 2, runs
        assert place["1"]["lora_name"] in (None, ""), runs
        assert not place["3"]["rooted"] and place["3"]["taught"], runs
        assert place["3"]["waits_for"] == "99", runs
        assert not place["4"]["taught"] and place["4"]["contents"] is None
        assert place["4"]["held"][0]["copies"] == [1], runs
        assert place["4"]["held"][0]["medium"] == "CPU", runs
        assert place["5"]["lora_name"] == "ad", runs
        assert place["5"]["cache_salt"] == "salty", runs
        text = run("index", *files.paths, "--dump").stdout
        for part in (", begins a chain: 2 blocks of 4 tokens",
                     ", waits for 99: 1 block of 4 tokens", ", by hash only",
                     "adapter ad, salted", "    CPU: 4 [1]\n"):
            assert part in text, (part, text)


# ---------------------------------------------------------------------------
# Tables and statistics


def test_instances():
    with Files(a=[store([1, 2], TOKENS[:8]), store([3], TOKENS[8:], 99),
                  store([4], [], size=0, medium="CPU"),
                  store([5], TOKENS[:4], group_idx=1, medium="GPU",
                        kv_cache_spec_kind="sliding_window",
                        kv_cache_spec_sliding_window=64)]) as files:
        one, = files.ask()
        assert one["kind"] == "instance" and one["batches"] == 4, one
        assert one["blocks"]["gpu"] == 4 and one["blocks"]["cpu"] == 1, one
        assert one["waiting"] == 1 and one["hash_only"] == 1, one
        assert one["block_sizes"] == [4], one
        groups = {g["group"]: g for g in one["groups"]}
        assert groups[1]["kind"] == "sliding_window", groups
        assert groups[1]["window"] == 64, groups
        text = run("index", *files.paths).stdout
        head, line, *rest = text.splitlines()
        assert head.split()[:4] == ["worker", "rank", "batches", "gpu"], text
        assert line.split()[1:5] == ["0", "4", "4", "1"], text
        assert any("group 1: sliding_window, block size 4, window 64" in r
                   for r in rest), text


def test_stats():
    with Files(a=[store([1, 2], TOKENS[:8]), remove([2, 7])],
               b=[store([1], TOKENS[:4])]) as files:
        stats, = files.ask("--stats")
        assert stats["kind"] == "stats" and stats["instances"] == 2, stats
        assert stats["residencies"]["gpu"] == 2, stats
        assert stats["copies"] == 2 and stats["bytes"] > 0, stats
        assert stats["counters"]["copies_stored"] == 3, stats
        assert stats["counters"]["removals_unknown"] == 1, stats
        assert [o["counters"]["copies_stored"] for o in stats["of"]] == [2, 1]
        text = run("index", *files.paths, "--stats").stdout
        for part in "copies_stored", "bytes", "b.jsonl rank 0":
            assert part in text, (part, text)


def test_text_of_an_answer():
    with Files(a=[store([1, 2], TOKENS[:8]),
                  store([1], [], size=0, medium="CPU")]) as files:
        done = run("index", *files.paths, "-t", LIST)
        head, line, last = done.stdout.splitlines()
        assert head.split() == ["worker", "rank", "longest", "gpu", "cpu",
                                "disk", "remote", "unknown", "|", "gpu",
                                "+cpu", "+disk"], head
        assert line.split()[1:] == ["0", "8", "8", "4", "0", "0", "0", "|",
                                    "8", "8", "8"], line
        assert last == "12 tokens asked for; held in part by 1 of 1", last
        done = run("index", *files.paths, "-t", "7,7,7,7")
        assert done.stdout == \
            "4 tokens asked for; held in part by 0 of 1\n", done


def test_a_limit_of_memory():
    """Far more blocks than fit: the index stays below and says so."""
    lines = []
    for chain in range(400):
        hashes = [f"{chain:032x}{block:032x}" for block in range(128)]
        tokens = [chain * 131 + i for i in range(512)]
        lines.append(store(hashes, tokens))
    with Files(a=lines) as files:
        stats, = files.ask("--stats", "--max-bytes", "4194304", stderr=None)
        assert 0 < stats["bytes"] <= stats["max_bytes"] == 4194304, stats
        assert stats["counters"]["blocks_evicted"] > 0, stats
        stats, = files.ask("--stats")
        assert stats["copies"] == 400 * 128, stats


def test_bad_lines():
    good = json.dumps(store([1], TOKENS[:4]))
    done = run("index", "-", "--json", "-t", LIST,
               stdin=f"{{\n{good}\n\n{{\"payload\": \"93\"}}\n")
    assert done.returncode == 1, done
    lines = done.stderr.splitlines()
    assert lines[0].startswith("standard input:1:") and "not JSON" in lines[0]
    assert lines[1].startswith("standard input:4: payload:"), lines
    assert lines[-1] == "kvevents index: 2 batches; 2 bad lines" or \
        lines[-1] == "kvevents index: 1 batches; 2 bad lines", lines
    assert json.loads(done.stdout)["rows"][0]["longest"] == 4, done
    done = run("index", "-", "--strict", stdin=f"{{\n{good}\n")
    assert done.returncode == 1 and done.stdout == "", done


def test_interrupt():
    from _command import BIN
    with subprocess.Popen([BIN, "index", "-"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True) as child:
        child.stdin.write('{"type":"AllBlocksCleared"}\n' * 3000)
        child.stdin.flush()
        child.send_signal(2)
        assert child.wait(60) == 130
        assert child.stdout.read() == "", "an answer from half a file"


def test_wrong_words():
    for args, texts in (
            ([], ["no file given", "standard input"]),
            (["-", "--tokens", "1,x"], ["--tokens", "item 2"]),
            (["-", "--tokens", ""], ["empty"]),
            (["-", "--tokens", "1", "--hashes", "1"], ["one of --tokens"]),
            (["-", "--hashes", "xyz"], ["--hashes", "'xyz'", "bytes in hex"]),
            (["-", "--contents", "1.5"], ["--contents", "'1.5'"]),
            (["-", "--lora", "a"], ["--lora", "--tokens"]),
            (["-", "--image", "a@1+1", "--contents", "1"], ["--image"]),
            (["-", "--image", "a", "-t", "1"],
             ["--image", "'a'", "ID@OFFSET+LENGTH"]),
            (["-", "-t", "1", "--image", "a@5+1", "--image", "b@1+1"],
             ["--image", "'b@1+1'", "in the order"]),
            (["-", "--tiers", "gpu,gpu"], ["--tiers", "'gpu,gpu'", "remote"]),
            (["-", "--max-bytes", "1000"], ["--max-bytes", "4194304"]),
            (["-", "--worker-from", "name"], ["file, topic or source"]),
            (["-", "--tokens-file", "-"], ["standard input", "once"]),
            (["/nonexistent.jsonl"], ["cannot open"]),
            (["-", "--limit", "0"], ["--limit", "'0'", "from 1"])):
        done = run("index", *args)
        assert done.returncode == 2 and done.stdout == "", (args, done)
        assert len(done.stderr.splitlines()) == 1, (args, done.stderr)
        for text in texts:
            assert text in done.stderr, (args, text, done.stderr)


if __name__ == "__main__":
    main(sys.modules[__name__])
