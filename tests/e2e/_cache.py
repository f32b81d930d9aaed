"""What a reader of watch --format json knows of each source's cache: the
contract of docs/guide/following.md in fifty lines."""

import collections


class Cache:
    """Copies of blocks, by (source, stream)."""

    def __init__(self):
        self.visible = collections.defaultdict(collections.Counter)
        self.twins = {}
        self.states = {}
        self.log = []  # types of notices, in order

    def take(self, line):
        source = (line.get("source"), line.get("stream"))
        if line["kind"] == "batch":
            self._batch(source, line)
        elif line["kind"] == "notice":
            self.log.append(line["type"])
            self._notice(source, line)
        return self

    def _notice(self, source, line):
        self.states[source] = line["state"]
        if line["type"] == "clear":
            self.visible[source] = collections.Counter()
            self.twins.pop(source, None)
        elif line["type"] == "begin":
            self.twins[source] = collections.Counter()
        elif line["type"] == "swap":
            self.visible[source] = self.twins.pop(source)
        elif line["type"] == "abort":
            del self.twins[source]

    def _batch(self, source, batch):
        blocks = (self.twins if batch["hidden"] else self.visible)[source]
        assert batch["hidden"] or not batch["snapshot"], batch
        for event in batch["events"]:
            if event["type"] == "AllBlocksCleared":
                gpu_only = "publisher_id" in batch
                for key in [k for k in blocks if not gpu_only
                            or k[1] in (None, "", "GPU")]:
                    del blocks[key]
                continue
            step = 1 if event["type"] == "BlockStored" else -1
            for hash_ in event["block_hashes"]:
                key = (hash_, event.get("medium") or "GPU",
                       event.get("group_idx"))
                blocks[key] = max(0, blocks[key] + step)

    def of(self, source, stream=None):
        """{hash: copies} of a source, over all media and groups."""
        held = collections.Counter()
        for (hash_, _, _), copies in self.visible[source, stream].items():
            held[hash_] += copies
        return +held
