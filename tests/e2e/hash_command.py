#!/usr/bin/env python3
"""kvevents hash: hashes from tokens, every published hash of the recordings,
and the wrong setting of recordings that are configured wrong.

The misconfigured recordings are real ones with wrong settings stated for them,
and streams whose hashes are computed here: Python's own pickle, a few lines of
CBOR, hashlib.
"""

import hashlib
import itertools
import json
import pathlib
import pickle
import shutil
import struct
import sys
import tempfile

from _command import FIXTURES, ROOT, lines_of, main, run

sys.path.insert(0, str(ROOT / "tests" / "interop"))

from _cbor import cbor  # noqa: E402

METAS = ROOT / "tests" / "hash"
RECORDED = sorted(METAS.glob("*.meta.json"))
PUBLISHED = 503     # hashes, of all recordings together

# ---------------------------------------------------------------------------
# An engine's hashes, computed by other means


def sha256_cbor(value):
    return hashlib.sha256(cbor(value)).digest()


def sha256(value):
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()


def engine_chain(digest, seed, tokens, size, keys=lambda block: None):
    """Digests of a chain; keys(block) is what enters beside the tokens."""
    parent, out = digest(seed), []
    for block in range(len(tokens) // size):
        parent = digest((parent, tuple(tokens[block * size:][:size]),
                         keys(block)))
        out.append(parent)
    return out


def sglang_chain(tokens, size):
    parent, out = b"", []
    for at in range(0, len(tokens) - size + 1, size):
        parent = hashlib.sha256(
            parent + struct.pack(f"<{size}I", *tokens[at:at + size])).digest()
        out.append(parent)
    return out


def last8(digest):
    return int.from_bytes(digest[-8:], "big")


def first8_signed(digest):
    return int.from_bytes(digest[:8], "big", signed=True)


def written(value):
    return value.hex() if isinstance(value, bytes) else str(value)


def stores(hashes, tokens, size, extra_keys=None, step=1, **fields):
    """A chain as stores of three blocks each."""
    lines = []
    for first in range(0, len(hashes), step):
        part = hashes[first:first + step]
        event = {"type": "BlockStored",
                 "block_hashes": [written(h) for h in part],
                 "parent_block_hash": written(hashes[first - 1])
                 if first else None,
                 "token_ids": tokens[first * size:(first + len(part)) * size],
                 "block_size": size, "lora_id": None, "medium": "GPU",
                 "lora_name": None, **fields}
        if extra_keys:
            event["extra_keys"] = extra_keys[first:first + step]
        lines.append(json.dumps(event))
    return lines


def prompt(seed, n):
    """Token ids of every width, always the same."""
    return [(seed * 7919 + i * i * 104729) % (1 << (4 + i % 17))
            for i in range(n)]


# ---------------------------------------------------------------------------


def verify(lines, *args, meta=None):
    """Verify lines; the object that --json gives, the exit status, and the
    text for people."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "recording.jsonl"
        path.write_text("\n".join(lines) + "\n")
        if meta is not None:
            path.with_name("recording.meta.json").write_text(json.dumps(meta))
        done = run("hash", "--verify", "--json", *args, str(path))
        assert done.stderr == "", done.stderr
        text = run("hash", "--verify", *args, str(path))
        assert text.returncode == done.returncode, text
    return json.loads(done.stdout), done.returncode, text.stdout


def recorded(name):
    """The lines of a recording, and what its engine was told."""
    return ((FIXTURES / f"{name}.jsonl").read_text().splitlines(),
            json.loads((METAS / f"{name}.meta.json").read_text()))


def as_printed(value):
    if isinstance(value, dict) and "$bytes" in value:
        return value["$bytes"]
    return str(value)


def as_json(lines):
    """A recording as events that watch --format json prints."""
    out = []
    for line in map(json.loads, lines):
        events = []
        for event in line["wire"][1]:
            event = dict(event)
            if "block_hashes" in event:
                event["block_hashes"] = [as_printed(h) for h in
                                         event["block_hashes"]]
            if event.get("parent_block_hash") is not None:
                event["parent_block_hash"] = as_printed(
                    event["parent_block_hash"])
            events.append(event)
        out.append(json.dumps({"kind": "batch", "seq": line["seq"],
                               "topic": line["topic"], "events": events}))
    return out


def test_every_published_hash():
    total = 0
    assert len(RECORDED) == 15, RECORDED
    for path in RECORDED:
        name = path.name.removesuffix(".meta.json")
        lines, meta = recorded(name)
        got, status, text = verify(lines, meta=meta)
        assert status == 0 and got["would"] is None, (name, got)
        assert got["reproduced"] == got["published"] > 0, (name, got)
        assert f"{got['published']} of {got['published']} published" in text
        assert got["settings"]["algorithm"] == meta["algo"], got
        again, status, _ = verify(as_json(lines), meta=meta)
        del got["recording"], again["recording"]
        assert again == got and status == 0, (name, again)
        total += got["published"]
    assert total == PUBLISHED, total


def test_settings_without_a_meta():
    for path in RECORDED:
        name = path.name.removesuffix(".meta.json")
        lines, meta = recorded(name)
        seed = meta["env"].get("PYTHONHASHSEED")
        args = ["-s", meta["algo"], "-b", str(meta["block_size"])]
        if seed is not None:
            args += ["--seed", seed]
        elif meta["algo"].startswith("xxhash"):
            args += ["--root", meta["none_hash"]]
        for request in meta["requests"]:
            if request.get("lora"):
                lora = request["lora"]
                args += ["--lora", f"{lora['name']},{lora['path']}"]
        got, status, _ = verify(lines, *args)
        assert status == 0 and got["reproduced"] == got["published"], \
            (name, got)


def test_an_adapter_whose_path_is_not_known():
    lines, meta = recorded("lora-sha256_cbor-bytes-seed0")
    for request in meta["requests"]:
        request.pop("lora", None)
    got, status, text = verify(lines, meta=meta)
    assert status == 0 and got["would"] is None, got
    assert got["adapter"] == 9 and got["different"] == 0, got
    assert got["reproduced"] == got["published"] - 9, got
    assert "give --lora NAME,PATH" in text, text


def test_a_chain_whose_beginning_is_missing():
    whole = prompt(1, 64)
    tokens = prompt(2, 96)
    args = ("-s", "sha256", "--seed", "0", "-b", "16")
    for form in bytes, last8:
        lines = stores([form(h) for h in engine_chain(sha256, "0", whole, 16)],
                       whole, 16)
        lines += stores([form(h) for h in engine_chain(sha256, "0", tokens,
                                                       16)],
                        tokens, 16, None, 2)[1:]
        got, status, text = verify(lines, *args)
        assert status == 0 and got["reproduced"] == 4, got
        if form is bytes:
            assert got["continued"] == 4, got
            assert "4 more follow from their published parents" in text, text
        else:
            assert got["no_parent"] == 4, got
            assert "an integer is too short to continue from" in text, text


# What is wrong: lines, how they are configured, what is named: settings that
# differ, the right settings, and the sentence.

def real(name, *args, change=None):
    lines, meta = recorded(name)
    if change:
        change(meta)
    return lines, args, meta


def wrong_seed_in_meta(meta):
    meta["env"]["PYTHONHASHSEED"] = "1"


def no_seed_in_meta(meta):
    meta["env"]["PYTHONHASHSEED"] = None
    meta["none_hash"] = None


def made_by_release(release, keys, extra_keys, **fields):
    """Blocks whose extra keys are hashed by the rules of a release."""
    tokens = prompt(3, 96)
    plain = prompt(4, 96)
    return (stores(engine_chain(sha256_cbor, "0", plain, 32), plain, 32, None,
                   3) +
            stores(engine_chain(sha256_cbor, "0", tokens, 32, keys), tokens,
                   32, extra_keys, 3, **fields),
            ("-s", "sha256_cbor", "--seed", "0", "--release", release), None)


def sub_blocks():
    """Blocks of 32 tokens, named by the second of two hashes of 16."""
    tokens = prompt(5, 160)
    hashes = [last8(h) for h in engine_chain(sha256, "0", tokens, 16)][1::2]
    return (stores(hashes, tokens, 32, None, 2),
            ("-s", "sha256", "--seed", "0"), None)


def of_sglang():
    tokens = prompt(6, 64)
    hashes = [first8_signed(h) for h in sglang_chain(tokens, 16)]
    return (stores(hashes, tokens, 16, None, 2), ("-s", "sha256"), None)


def with_seed(seed, *args, size=16):
    tokens = prompt(7, 10 * size)
    hashes = engine_chain(sha256, seed, tokens, size)
    return stores(hashes, tokens, size, None, 3), args, None


IMAGES = [[["img", 20]], [["img", -12]], None]
BARE = [["img"], ["img"], None]

MISCONFIGURED = [
    ("a seed", lambda: real("sha256_cbor-bytes-noseed", "--seed", "42"),
     ["seed"], {"seed": None},
     "the engine uses sha256_cbor without PYTHONHASHSEED; you said seed 42"),
    ("a seed in the meta", lambda: real("dup-sha256_cbor-bytes-seed0",
                                        change=wrong_seed_in_meta),
     ["seed"], {"seed": "0"},
     "the engine uses sha256_cbor with PYTHONHASHSEED=0; its .meta.json says "
     "seed 1"),
    ("no seed", lambda: real("xxhash_cbor-int-seed7", change=no_seed_in_meta),
     ["seed"], {"seed": "7"},
     "the engine uses xxhash_cbor with PYTHONHASHSEED=7; its .meta.json says "
     "no seed"),
    ("an algorithm", lambda: real("sha256-bytes-seed0", "-s", "sha256_cbor"),
     ["algorithm"], {"algorithm": "sha256"},
     "the engine uses sha256 with PYTHONHASHSEED=0; you said sha256_cbor"),
    ("an algorithm of other hashes",
     lambda: real("hybrid-gemma3-sha256_cbor-bytes-seed0", "-s", "xxhash"),
     ["algorithm"], {"algorithm": "sha256_cbor"},
     "the engine uses sha256_cbor with PYTHONHASHSEED=0; you said xxhash"),
    ("a serializer", lambda: real("xxhash_cbor-bytes-seed7", "-s", "xxhash"),
     ["algorithm"], {"algorithm": "xxhash_cbor"},
     "the engine uses xxhash_cbor with PYTHONHASHSEED=7; you said xxhash"),
    ("a block size", lambda: real("bs16-sha256_cbor-bytes-seed0", "-b", "32"),
     ["block_size"], {"block_size": 16},
     "the engine uses sha256_cbor with PYTHONHASHSEED=0, blocks of 16 tokens; "
     "you said blocks of 32 tokens"),
    ("a form", lambda: real("sha256-int-defaults", "--form", "bytes"),
     ["form"], {"form": "last8_be_unsigned"},
     "the engine uses sha256 without PYTHONHASHSEED, hashes as "
     "last8_be_unsigned; you said hashes as bytes"),
    ("a release, by its seed",
     lambda: real("sha256_cbor-bytes-noseed", "--release", "0.25",
                  change=no_seed_in_meta),
     ["release"], {"seed": None},
     "the engine uses sha256_cbor without PYTHONHASHSEED, the rules of "
     "releases 0.31 and newer; you said release 0.25.0"),
    ("a release, by tags", lambda: made_by_release(
        "0.32", lambda b: None if b == 2 else (("img", 20 - 32 * b),), IMAGES),
     ["release"], {"seed": "0"},
     "the engine uses sha256_cbor with PYTHONHASHSEED=0, the rules of "
     "releases 0.29 to 0.30; you said release 0.32.0"),
    ("a release, by offsets", lambda: made_by_release(
        "0.25", lambda b: None if b == 2 else ("img",), IMAGES),
     ["release"], {"seed": "0"},
     "the engine uses sha256_cbor with PYTHONHASHSEED=0, the rules of "
     "releases up to 0.18; you said release 0.25.0"),
    ("a release, by an adapter", lambda: made_by_release(
        "0.25", lambda b: (("lora", "ad-1", "p/1"),),
        [["ad-1"]] * 3, lora_name="ad-1", lora_id=1)[:1] +
     (("-s", "sha256_cbor", "--seed", "0", "--release", "0.25", "--lora",
       "ad-1,p/1"), None),
     ["release"], {"seed": "0"},
     "the engine uses sha256_cbor with PYTHONHASHSEED=0, the rules of "
     "releases 0.31 and newer; you said release 0.25.0"),
    ("a size of hashes", sub_blocks, ["block_size"], {"block_size": 16},
     "the engine uses sha256 with PYTHONHASHSEED=0, blocks of 16 tokens; "
     "the default is blocks of 32 tokens"),
    ("an engine", of_sglang, ["algorithm", "form"],
     {"algorithm": "sglang", "form": "first8_be_signed"},
     "the engine uses sglang, hashes as first8_be_signed; you said sha256; "
     "the default is hashes as last8_be_unsigned"),
    ("a seed that is a number", lambda: with_seed("31337", "--seed", "0"),
     ["seed"], {"seed": "31337"},
     "the engine uses sha256 with PYTHONHASHSEED=31337; you said seed 0"),
    ("a seed that is a text",
     lambda: with_seed('se"ed', "--seed", "0", "--seed", 'se"ed'),
     ["seed"], {"seed": 'se"ed'},
     'the engine uses sha256 with PYTHONHASHSEED=se"ed; you said seed 0'),
    ("three settings",
     lambda: real("sha256-int-defaults", "-s", "xxhash_cbor", "--seed", "9",
                  "-b", "16"),
     ["algorithm", "seed", "block_size"],
     {"algorithm": "sha256", "seed": None, "block_size": 32},
     "the engine uses sha256 without PYTHONHASHSEED, blocks of 32 tokens; you "
     "said xxhash_cbor, seed 9, blocks of 16 tokens"),
]


def test_misconfigured():
    assert len(MISCONFIGURED) >= 10
    for name, make, differs, right, sentence in MISCONFIGURED:
        lines, args, meta = make()
        got, status, text = verify(lines, *args, meta=meta)
        would = got["would"]
        assert status == 1 and would, (name, got)
        assert got["reproduced"] < got["published"], (name, got)
        assert would["text"] == sentence, (name, would["text"])
        assert would["differs"] == differs, (name, would)
        assert would["seed_known"] and would["reproduced"] == \
            got["published"], (name, got)
        for setting, value in right.items():
            assert would[setting] == value, (name, setting, would)
        assert f"  {sentence} ({got['published']} reproduced)\n" in text, text


def test_a_seed_that_nobody_knows():
    """Hashes in bytes tell the algorithm all the same."""
    lines, meta = recorded("xxhash_cbor-bytes-noseed")
    meta["none_hash"] = None
    meta["algo"] = "xxhash"
    got, status, text = verify(lines, meta=meta)
    would = got["would"]
    assert status == 1 and not would["seed_known"], got
    assert would["algorithm"] == "xxhash_cbor" and would["unrooted"] > 20, got
    assert would["text"].startswith(
        "the engine uses xxhash_cbor; what its chains begin with was not "
        "found: random bytes"), would
    assert "follow from their published parents)" in text, text

    lines, args, _ = with_seed("no such seed", "-s", "sha256")
    got, status, _ = verify(lines, *args)
    assert status == 1 and not got["would"]["seed_known"], got


def test_two_engines_in_one_recording():
    """What is right stays right; the rest is named."""
    lines, args, _ = with_seed("0", "-s", "sha256", "--seed", "0")
    more = prompt(8, 32)
    lines += stores(engine_chain(sha256_cbor, "5", more, 16), more, 16)
    got, status, text = verify(lines, *args)
    assert status == 1 and got["reproduced"] == 10, got
    assert got["would"]["reproduced"] == 2, got
    assert ("  of what differs: the engine uses sha256_cbor with "
            "PYTHONHASHSEED=5; you said sha256, seed 0 (2 reproduced)\n") in \
        text, text


def test_hashes_that_are_no_engines():
    lines = stores([11, 12, 13], prompt(1, 48), 16, None, 3)
    got, status, text = verify(lines)
    assert status == 1 and got["would"] is None, got
    assert got["different"] == got["published"] == 3, got
    assert "no setting that was tried" in text, text
    got, status, _ = verify(['{"type":"AllBlocksCleared"}'])
    assert status == 1 and got["published"] == 0, got


def test_several_recordings():
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name in ("dup-sha256_cbor-bytes-seed0", "sha256-bytes-seed0"):
            for source in (FIXTURES / f"{name}.jsonl",
                           METAS / f"{name}.meta.json"):
                shutil.copy(source, folder)
            paths.append(str(pathlib.Path(folder) / f"{name}.jsonl"))
        done = run("hash", "--verify", "--json", *paths)
    assert done.returncode == 0, done
    got = [json.loads(line) for line in done.stdout.splitlines()]
    assert [g["recording"] for g in got] == paths, got


def test_bad_lines_are_said():
    lines = ["{", *stores([11], prompt(1, 16), 16)]
    done = run("hash", "--verify", "-", stdin="\n".join(lines))
    assert done.returncode == 1, done
    assert "standard input:1:" in done.stderr, done
    assert "0 of 1 published" in done.stdout, done
    done = run("hash", "--verify", "--strict", "-", stdin="\n".join(lines))
    assert done.returncode == 1 and done.stdout == "", done


# ---------------------------------------------------------------------------
# Computing


def hashed(*args, stdin=""):
    done = run("hash", "--json", *args, stdin=stdin)
    assert done.returncode == 0 and done.stderr == "", done
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_content():
    want = ["14643705804678351452", "16777012769546811212"]
    forms = (["1,2,3,4,5,6,7,8"], ["1", "2", "3", "4", "5", "6", "7", "8"],
             ["[1, 2, 3, 4, 5, 6, 7, 8]"], ["1 2 3 4", "5 6 7 8"])
    for form in forms:
        got = hashed("-b", "4", *form)
        assert [g["hash"] for g in got] == want, got
        assert got[1] == {"block": 1, "hash": want[1], "parent": None,
                          "first": 4, "last": 7}, got
    # What does not fill a block has no hash.
    assert len(hashed("-b", "4", "-s", "content", *"123456789")) == 2
    assert hashed("-b", "4", "1,2,3") == []
    assert hashed("-b", "4", stdin="1 2 3 4\n5,6\n7\n8\n") == \
        hashed("-b", "4", forms[0][0])
    assert hashed("-b", "4", "-", stdin="[1,2,3,4]") == got[:1]
    with tempfile.NamedTemporaryFile("w") as file:
        json.dump(list(range(1, 9)), file)
        file.flush()
        assert hashed("-b", "4", "-f", file.name) == \
            hashed("-b", "4", forms[0][0])


# Values of Dynamo's own library: block 16, tokens 1 to 48.
DYNAMO = [
    ([], [0xea06fc71a5ee6e88, 0x1fbf39bd106be0b5, 0xa8562fe663b7a097],
     [0xad01835a37dd294c, 0x0d55e56c2bccbd1a]),
    (["--lora", "my-lora"],
     [0x3990f1b14309d7e6, 0x27c809c22da91b94, 0xe0ee5d0e535bfbf1],
     [0x6cf1d86294264b7a, 0x8ce387e541fed699]),
    (["--salt", "tenant-a"],
     [0x71742dfed90682a9, 0xb7db648aa3dfb040, 0x27ea5f8baebff2fd],
     [0x10a55acc122317d5, 0x7ba34a181b94b878]),
    (["--salt", "dynamo-cache-salt:tenant-a", "--lora", "my-lora"],
     [0x12ed440cccc38cf3, 0x9db0a52cbd130133, 0xde036775f15cf586],
     [0x5a006d5753bfda88, 0x00bc8e8e43298ff5]),
    (["--lookahead", "1"], [0x5db5a9903451d2d0, 0xc98d53f2ae88291e],
     [0x7f652463affb3fee]),
]


def test_dynamo():
    tokens = [str(i) for i in range(1, 49)]
    for args, local, sequence in DYNAMO:
        got = hashed("-s", "dynamo", *args, *tokens)
        assert [int(g["hash"]) for g in got] == local, (args, got)
        got = hashed("-s", "dynamo-sequence", *args, *tokens)
        assert [int(g["hash"]) for g in got] == [local[0], *sequence], got
        assert [g["parent"] for g in got[1:]] == \
            [g["hash"] for g in got[:-1]], got


def test_engines():
    tokens = [*range(100, 132)]
    words = [",".join(map(str, tokens))]
    for digest, seed in itertools.product((sha256, sha256_cbor), ("0", None)):
        chain = engine_chain(digest, seed or "vllm-none-hash", tokens, 16)
        args = ["-s", digest.__name__]
        args += ["--seed", seed] if seed else []
        got = hashed(*args, *words)
        assert [int(g["hash"]) for g in got] == [last8(h) for h in chain]
        got = hashed(*args, "--form", "bytes", *words)
        assert [g["hash"] for g in got] == [h.hex() for h in chain], got
        assert got[0]["parent"] is None and got[1]["parent"] == \
            got[0]["hash"], got
    text = run("hash", "-s", "sha256", "--seed", "0", *words).stdout
    assert text == ("11861665817516400925  -  0..15\n"
                    "10046384494910993043  11861665817516400925  16..31\n")
    got = hashed("-s", "xxhash_cbor", "--seed", "0", "--form", "bytes", *words)
    assert [g["hash"] for g in got] == ["44a6e932beab462055ecfc98f7017242",
                                        "7c7a0cc60b1a8036416025b3d503dc04"]
    chain = sglang_chain(tokens, 16)
    got = hashed("-s", "sglang", *words)
    assert [int(g["hash"]) for g in got] == \
        [first8_signed(h) & (1 << 64) - 1 for h in chain], got


def test_what_is_hashed_beside_tokens():
    tokens = prompt(9, 96)
    words = [",".join(map(str, tokens))]

    def keys(block):
        out = (("lora", "ad", "pa/th"),)
        if block < 2:
            out += (("mm", "im", 20 - 32 * block),)
        return out + ((("cache_salt", "s"),) if block == 0 else ())

    got = hashed("-s", "sha256_cbor", "--seed", "0", "-b", "32", "--form",
                 "bytes", "--lora", "ad,pa/th", "--salt", "s", "--image",
                 "im@20+24", *words)
    want = engine_chain(sha256_cbor, "0", tokens, 32, keys)
    assert [g["hash"] for g in got] == [h.hex() for h in want], got


def test_wrong_words():
    for args, texts in (
            (["1,2,x"], ["item 3", "no token id"]),
            (["4294967296"], ["item 1", "4294967295"]),
            (["-s", "sha256", "--seed", "1", "--seed", "2", "1"],
             ["--seed", "2 times"]),
            (["--lora", "a", "1"], ["--lora", "tokens only"]),
            (["--verify"], ["--verify", "RECORDING"]),
            (["--verify", "-s", "dynamo", "-"], ["--verify", "sha256"]),
            (["-s", "xxhash", *map(str, range(16))], ["PYTHONHASHSEED"]),
            (["-s", "md5"], ["'md5'", "sha256_cbor"]),
            (["-s", "dynamo", "--image", "a@1", "1"], ["ID@OFFSET+LENGTH"]),
            (["--release", "0.32.0.1"], ["--release", "'0.32.0.1'"]),
            (["-s", "sha256", "--release", "0.10", "1"], ["0.11.2"]),
            (["--root", "abc"], ["--root", "hex digits"]),
            (["-f", "/nonexistent"], ["cannot open"]),
            (["--no-seed", "--seed", "1", "1"], ["--no-seed", "--seed"])):
        done = run("hash", *args)
        assert done.returncode == 2 and done.stdout == "", (args, done)
        assert len(done.stderr.splitlines()) == 1, (args, done.stderr)
        for text in texts:
            assert text in done.stderr, (args, text, done.stderr)


if __name__ == "__main__":
    main(sys.modules[__name__])
