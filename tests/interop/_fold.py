"""What a cache holds, folded from events by the letter, in plain Python.

A store adds one copy of each of its hashes in its scope (medium, locality,
ownership, group), a removal takes one away, never below zero. A clear empties
everything, or the GPU only where the publisher has an id.
"""

import collections

GPU = (None, "", "GPU")


def bits(value):
    """A hash as what it is: -1 and 2^64 - 1 are one."""
    return value & (1 << 64) - 1 if isinstance(value, int) else value


def scope(event):
    """An absent medium and an empty one are the GPU."""
    medium = event.get("medium")
    return ("GPU" if medium in GPU else medium, event.get("locality"),
            event.get("ownership"), event.get("group_idx"))


class Fold:
    def __init__(self, gpu_only=False):
        self.gpu_only = gpu_only
        self.copies = collections.Counter()
        self.below = 0

    def apply(self, events):
        for event in events:
            if event["type"] == "AllBlocksCleared":
                self._clear()
                continue
            step = 1 if event["type"] == "BlockStored" else -1
            place = scope(event)
            for value in event["block_hashes"]:
                self._count((*place, bits(value)), step)

    def _count(self, key, step):
        if step < 0 and not self.copies[key]:
            self.below += 1
        else:
            self.copies[key] += step
        if not self.copies[key]:
            del self.copies[key]

    def _clear(self):
        for key in list(self.copies):
            if not self.gpu_only or key[0] == "GPU":
                del self.copies[key]

    def cached(self):
        return dict(self.copies)


def differences(ours, truth):
    """A few of them, for people."""
    wrong = [f"{key}: {ours.get(key, 0)} for {truth.get(key, 0)}"
             for key in sorted({*ours, *truth}, key=str)
             if ours.get(key, 0) != truth.get(key, 0)]
    return f"{len(wrong)} differ: " + ", ".join(wrong[:5]) if wrong \
        else "equal"


class Follower:
    """Folds what a _harness.Reader was told: what is visible, and the twin.

    number is the last batch that what is visible includes, state what the
    source was said to be, both as of the last take().
    """

    def __init__(self, gpu_only=False):
        self.gpu_only = gpu_only
        self.visible = Fold(gpu_only)
        self.twin = None
        self.number = None
        self.twin_number = None
        self.state = None
        self.taken = 0
        self.odd = []   # what may not be

    def take(self, items):
        """Take what was said since the last call."""
        while self.taken < len(items):
            item = items[self.taken]
            self.taken += 1
            getattr(self, "_" + item[0])(*item[1:-1])
        return self

    def _batch(self, number, events, _, hidden):
        if hidden and self.twin is None:
            self.odd.append(f"batch {number} of a twin that there is not")
            return
        self._apply(number, events, hidden)

    def _apply(self, number, events, hidden):
        if hidden:
            self.twin.apply(events)
            self.twin_number = number
        else:
            self.visible.apply(events)
            self.number = number

    def _chunk(self, number, events):
        if self.twin is None:
            self.odd.append(f"snapshot {number} for a twin that there is not")
            return
        self._apply(number, events, True)

    def _begin(self):
        self.twin, self.twin_number = Fold(self.gpu_only), None

    def _swap(self):
        if self.twin is None:
            self.odd.append("a swap without a twin")
            return
        self.visible, self.twin = self.twin, None
        self.number = self.twin_number

    def _abort(self):
        self.twin = None

    def _clear(self):
        self.visible, self.twin = Fold(self.gpu_only), None
        self.number = None

    def _state(self, name, _):
        self.state = name

    def _lost(self, *_):
        pass

    _other = _lost
