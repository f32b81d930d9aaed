"""Blocks of random tokens and keys, hashed here and by the library.

What an engine written in Python digests is what its pickle module writes; that
module writes it here. CBOR is written by a few lines of our own, SHA-256 comes
from hashlib. XXH3 is compared where the xxhash module is installed; else only
the bytes are.
"""

import hashlib
import os
import pathlib
import pickle
import random
import subprocess
import sys

from _cbor import cbor

try:
    import xxhash
except ImportError:
    xxhash = None

ROOT = pathlib.Path(os.environ.get("KVEVENTS_SOURCE_DIR",
                                   pathlib.Path(__file__).parents[2]))
TOOL = os.environ.get("KVEVENTS_HASH_TOOL") or str(
    pathlib.Path(os.environ.get("KVEVENTS_BUILD_DIR",
                                ROOT / "build" / "release"))
    / "tests" / "kve_hash_tool")
SEED = 7
BLOCKS = 2000
MM = "mm"
RELEASES = ((0, 11, 2), (0, 18, 0), (0, 20, 0), (0, 30, 0), (0, 31, 0),
            (0, 33, 0))
EDGES = (0, 23, 24, 127, 128, 255, 256, 32767, 32768, 65535, 65536,
         (1 << 31) - 1, 1 << 31, (1 << 32) - 1)


def write(algorithm, value):
    if algorithm.endswith("_cbor"):
        return cbor(value)
    return pickle.dumps(value, protocol=5)


def digest(algorithm, data):
    if algorithm.startswith("sha256"):
        return hashlib.sha256(data).digest()
    return xxhash.xxh3_128_digest(data) if xxhash else None


def own(text):
    """A text that is an object of its own, as far as Python has it so."""
    return text.encode().decode()


def any_text(rng, least=1):
    letters = rng.choice(("ab", "abcdefgh", "aé", "日本語", "x😀"))
    length = rng.choice((1, 1, 2, 5, 40, 255, 256, 300))
    return "".join(rng.choices(letters, k=max(least, length)))


class Block:
    def __init__(self, rng):
        self.algorithm = rng.choice(("sha256", "sha256_cbor", "xxhash",
                                     "xxhash_cbor"))
        self.release = rng.choice(RELEASES)
        self.ahead = rng.choice((0, 0, 0, 1, 3)) \
            if self.release >= (0, 33, 0) else 0
        size = rng.choice((1, 2, 3, 4, 16, 32, 64, 256))
        self.tokens = [rng.choice(EDGES) if rng.random() < 0.2
                       else rng.randrange(1 << rng.choice((8, 17, 32)))
                       for _ in range(size + self.ahead)]
        self.seed = rng.choice(("0", "", "random", "0x" * 200, "é"))
        self.parent = rng.randbytes(
            32 if self.algorithm.startswith("sha256") else 16)
        self.rooted = rng.random() < 0.3
        self.lora = any_text(rng) if rng.random() < 0.4 else None
        self.path = any_text(rng, 0)
        self.salt = any_text(rng) if rng.random() < 0.3 else None
        self.images = [(any_text(rng), rng.choice((
            0, 5, -1, -3, 255, 256, -200, 70000, -70000, -(1 << 31), 1 << 31,
            -(1 << 31) - 1, 1 << 40, -(1 << 47), (1 << 63) - 1)))
            for _ in range(rng.choice((0, 0, 1, 2, 3, 4, 60)))]
        self.embeds = rng.randbytes(rng.choice((0, 32, 255, 256, 300))) \
            if rng.random() < 0.3 else None

    def keys(self):
        tags, keys = self.release >= (0, 31, 0), []
        if self.lora is not None:
            keys.append(("lora", own(self.lora), own(self.path)) if tags
                        else own(self.lora))
        for text, offset in self.images:
            if tags:
                keys.append((MM, own(text), offset))
            elif self.release >= (0, 20, 0):
                keys.append((own(text), offset))
            else:
                keys.append(own(text))
        if self.salt is not None:
            keys.append(("cache_salt", own(self.salt)) if tags
                        else own(self.salt))
        if self.embeds is not None:
            keys.append(("prompt_embeds", self.embeds) if tags
                        else self.embeds)
        return tuple(keys) or None

    def value(self, root):
        size = len(self.tokens) - self.ahead
        third = self.keys()
        if self.ahead:
            third = (third, *self.tokens[size:])
        parent = root if self.rooted else self.parent
        return parent, tuple(self.tokens[:size]), third

    def line(self):
        def hexed(value):
            if value is None:
                return "-"
            data = value.encode() if isinstance(value, str) else value
            return "x" + data.hex()

        items = [f"{hexed(text)}@{offset}" for text, offset in self.images]
        if self.embeds is not None:
            items.append(hexed(self.embeds))
        a, b, c = self.release
        return " ".join((
            self.algorithm, hexed(self.seed), str(a * 10**6 + b * 1000 + c),
            str(self.ahead), "-" if self.rooted else hexed(self.parent),
            ",".join(map(str, self.tokens)), hexed(self.lora),
            hexed(self.path), hexed(self.salt), ",".join(items) or "-"))


def judge(block, answer):
    """What is wrong with an answer, or None."""
    root, data, said = (bytes.fromhex(word) for word in answer.split())
    want = digest(block.algorithm, write(block.algorithm, own(block.seed)))
    if want is not None and root != want:
        return "root"
    if data != write(block.algorithm, block.value(root)):
        return "bytes"
    want = digest(block.algorithm, data)
    return "digest" if want is not None and said != want else None


def main():
    if not os.access(TOOL, os.X_OK):
        print("skipped: kve_hash_tool was not built")
        sys.exit(77)
    rng = random.Random(SEED)
    blocks = [Block(rng) for _ in range(BLOCKS)]
    run = subprocess.run([TOOL], text=True, capture_output=True, timeout=100,
                         input="".join(b.line() + "\n" for b in blocks))
    answers = run.stdout.splitlines()
    if run.returncode or len(answers) != BLOCKS:
        sys.exit(f"kve_hash_tool: {run.returncode}, {len(answers)} of "
                 f"{BLOCKS} answers: {run.stderr.strip()}")
    for block, answer in zip(blocks, answers):
        wrong = judge(block, answer)
        if wrong:
            sys.exit(f"seed {SEED}: {wrong}\n{block.line()}\n{answer}")
    print(f"{BLOCKS} blocks are equal, seed {SEED}"
          + ("" if xxhash else "; XXH3 digests not compared"))


if __name__ == "__main__":
    main()
