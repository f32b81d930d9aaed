"""What an index has to hold after each batch, by the letter, in plain Python.

Which copies there are is _fold.py's matter. This is where blocks stand: a
store with all its tokens teaches of each hash the block before it and its
content (tokens, and what else tells equal tokens apart); adapter and salt are
those of the chain's first block. A hash stays taught for as long as a copy of
it is held, and to the end of the batch in which the last one goes.
"""

import json
import subprocess
import sys

import _fold


class Place:
    """Where a block stands: behind another one, behind a hash that is not
    known yet, or at the beginning of a chain."""

    def __init__(self, content, parent=None, waits_for=None, root=None):
        self.content, self.parent = content, parent
        self.waits_for, self.root = waits_for, root

    def path(self):
        """((beginning), content, content, ...)."""
        contents, place = [], self
        while True:
            contents.append(place.content)
            if place.parent is None:
                break
            place = place.parent
        start = ("waits", place.waits_for) if place.root is None else \
            ("root", *place.root)
        return (start, *reversed(contents))


def key(value):
    return value if isinstance(value, bytes) else _fold.bits(value)


def items_of(event, block, starts):
    """A block's extra keys without adapter and salt, and its salt."""
    keys = event.get("extra_keys")
    mine = list(keys[block] or ()) if keys else []
    if mine and mine[0] == event.get("lora_name"):
        mine.pop(0)
    salt = None
    if starts and mine and isinstance(mine[-1], str):
        salt = mine.pop()
    return tuple(tuple(item) if isinstance(item, list) else item
                 for item in mine), salt


class Residency:
    def __init__(self):
        self.fold = _fold.Fold()
        self.taught = {}

    def apply(self, events):
        for event in events:
            self.fold.apply([event])
            if event["type"] == "BlockStored":
                self._teach(event)
        held = {name[-1] for name in self.fold.copies}
        self.taught = {value: place for value, place in self.taught.items()
                       if value in held}

    def _teach(self, event):
        hashes = [key(value) for value in event["block_hashes"]]
        tokens, size = event["token_ids"], event["block_size"]
        said = event.get("extra_keys") is not None or \
            event.get("medium") in _fold.GPU
        if not hashes or not size or len(tokens) != len(hashes) * size or \
                not said:
            return
        parent = event.get("parent_block_hash")
        parent = None if parent is None else key(parent)
        for block, value in enumerate(hashes):
            starts = block == 0 and parent is None
            items, salt = items_of(event, block, starts)
            content = (tuple(tokens[block * size:][:size]), items)
            if value not in self.taught:
                self._place(value, content, parent,
                            (event.get("lora_name"), salt))
            parent = value

    def _place(self, value, content, parent, root):
        if parent is None:
            place = Place(content, root=root)
        elif parent in self.taught:
            place = Place(content, parent=self.taught[parent])
        else:
            place = Place(content, waits_for=parent)
        self.taught[value] = place
        for other in self.taught.values():
            if other.waits_for == value:
                other.waits_for, other.parent = None, place

    def places(self):
        """{hash: path} of what is held; None: known by hash only."""
        held = {name[-1] for name in self.fold.copies}
        return {value: self.taught[value].path() if value in self.taught
                else None for value in held}


# ---------------------------------------------------------------------------
# What an index says


def value_of(value):
    return bytes.fromhex(value["bytes"]) if isinstance(value, dict) else value


class Dump:
    """What a dump says of one instance."""

    def __init__(self, runs):
        self.copies, self.paths = {}, {}
        self.odd = []   # what may not be
        ends = {0: None}
        for run in runs:
            if run["id"] in ends or run["parent"] not in ends:
                self.odd.append(f"run {run['id']}: named twice, or before "
                                "its parent")
            self._run(run, ends)

    def _run(self, run, ends):
        if run["parent"]:
            path = ends[run["parent"]]
        elif run["rooted"]:
            path = (("root", run["lora_name"] or None,
                     run["cache_salt"] or None),)
        else:
            path = (("waits", run["waits_for"] and
                     value_of(run["waits_for"])),)
        paths = []
        for content in run["contents"]:
            path = (*path, content)
            paths.append(path)
        ends[run["id"]] = path
        for held in run["held"]:
            self._held(run, held, paths)

    def _held(self, run, held, paths):
        medium = held["medium"]
        scope = ("GPU" if medium in _fold.GPU else medium,
                 held["locality"] or None, held["ownership"] or None,
                 held["group"])
        for block, (value, n) in enumerate(zip(held["hashes"],
                                               held["copies"], strict=True)):
            if not n:
                continue
            value = value_of(value)
            path = paths[block] if run["taught"] else None
            if self.paths.setdefault(value, path) != path:
                self.odd.append(f"{value!r} stands at two places")
            if (*scope, value) in self.copies:
                self.odd.append(f"{value!r} is named twice in one scope")
            self.copies[*scope, value] = n


class Contents:
    """Content hashes are one for each content, and differ between two."""

    def __init__(self):
        self.content_of, self.hash_of = {}, {}

    def agree(self, path, wanted):
        """Whether a path of content hashes is the wanted path."""
        if path is None or wanted is None:
            return path is None and wanted is None
        return len(path) == len(wanted) and path[0] == wanted[0] and all(
            self.content_of.setdefault(got, want) == want and
            self.hash_of.setdefault(want, got) == got
            for got, want in zip(path[1:], wanted[1:]))


def compare(dump, residency, contents):
    """What differs, for people; "" when nothing does."""
    wrong = list(dump.odd)
    if dump.copies != residency.fold.cached():
        wrong.append(_fold.differences(dump.copies, residency.fold.cached()))
    wanted = residency.places()
    for value, path in dump.paths.items():
        if value in wanted and not contents.agree(path, wanted[value]):
            wrong.append(f"{value!r} stands at {path}, not at "
                         f"{wanted[value]}")
    return "; ".join(str(w) for w in wrong[:3])


class Tool:
    """tests/tools/kve_index_tool.c."""

    def __init__(self, path, *arguments):
        self.child = subprocess.Popen([path, *arguments], text=True,
                                      stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE)

    def say(self, line):
        self.child.stdin.write(line + "\n")
        self.child.stdin.flush()

    def apply(self, payload):
        self.say("apply " + payload.hex())

    def dump(self):
        """({rank: Dump}, state of the source)."""
        self.say("dump")
        line = self.child.stdout.readline()
        if not line:
            sys.exit(f"the tool ended with {self.child.wait()}")
        got = json.loads(line)
        return ({instance["rank"]: Dump(instance["runs"])
                 for instance in got["instances"]}, got["state"])

    def close(self):
        """End it; its exit status."""
        self.child.stdin.close()
        return self.child.wait(60)
