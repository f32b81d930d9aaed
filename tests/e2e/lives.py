#!/usr/bin/env python3
"""Restarts and losses as a reader of the command sees them: what it adds up
(_cache.py) is what the publisher holds, at every moment.

ctest-timeout: 300
"""

import json
import signal
import subprocess
import sys
import time

from _cache import Cache
from _command import LIMIT, Publisher, Running, main, ports_to_keep


def store(*hashes):
    return json.dumps({
        "type": "BlockStored", "block_hashes": list(hashes),
        "token_ids": list(range(2 * len(hashes))), "block_size": 2,
        "medium": "GPU"})


def names(hashes):
    return {str(h) for h in hashes}


class Reader(Running):
    """watch --format json, and what is known by its lines."""

    def __init__(self, live, replay, *args):
        super().__init__("watch", live, *(["-r", replay] if replay else []),
                         "-f", "json", *args)
        self.live = live
        self.cache = Cache()
        self.read = 0
        self.fewest = None  # blocks ever visible, since it was set

    def look(self):
        for line in self.out[self.read:]:
            self.read += 1
            self.cache.take(json.loads(line))
            if self.fewest is not None:
                self.fewest = min(self.fewest, len(self.held()))
        return self

    def held(self):
        return set(self.cache.of(self.live))

    def state(self):
        return self.cache.states.get((self.live, None))

    def until(self, condition):
        end = time.monotonic() + LIMIT
        while not condition(self.look()):
            assert time.monotonic() < end, (
                self.state(), len(self.held()), self.cache.log[-20:],
                self.err[-20:])
            time.sleep(0.02)

    def until_exact(self, hashes):
        self.until(lambda r: r.state() == "live" and r.held() == names(hashes))

    def notices(self, kind):
        return [o for o in map(json.loads, list(self.out))
                if o["kind"] == "notice" and o["type"] == kind]


def places(n):
    first = ports_to_keep(n)
    return [f"tcp://127.0.0.1:{first + i}" for i in range(n)]


def pipe(live, replay, *args):
    return Publisher("-", *args, endpoint=live, replay=replay,
                     stdin=subprocess.PIPE)


def test_B7_numbers_that_fall():
    """No replay endpoint: the second life begins at 0, and only it counts."""
    live, = places(1)
    with Reader(live, None) as reader:
        with pipe(live, None) as one:
            end = time.monotonic() + LIMIT
            n = 0
            # Until a subscription is there batches reach nobody.
            while len(reader.look().held()) < 10:
                assert time.monotonic() < end, reader.err
                one.say(store(1000 + n))
                n += 1
                time.sleep(0.02)
            one.say(*(store(1000 + n + i) for i in range(1000)))
            reader.until(lambda r: names([1999 + n]) <= r.held())
            one.signal(signal.SIGKILL)
        with pipe(live, None) as two:
            m = 0
            while not names([5000 + m - 1]) <= reader.look().held():
                assert time.monotonic() < end and m < 1000, reader.err
                two.say(store(5000 + m))
                m += 1
                time.sleep(0.2)
            assert not reader.held() & names(range(1000, 5000)), reader.held()
            assert len(reader.notices("clear")) == 1, reader.cache.log


def test_B8_numbers_that_go_on():
    """The second life is at a higher number when we are back: a gap, to all
    appearance. Not one block of the two is mixed."""
    live, replay = places(2)
    with Reader(live, replay, "--stats") as reader:
        with pipe(live, replay) as one:
            one.say(*(store(n) for n in range(10)))
            reader.until_exact(range(10))
            one.signal(signal.SIGKILL)
        with pipe(live, replay) as two:
            two.say(*(store(100 + n) for n in range(14)))
            reader.until_exact(range(100, 114))
            reader.signal()
            assert reader.end() == 130
    assert len([n for n in reader.notices("state")
                if n["reason"] in ("restart", "new_id")]) == 1
    stats = json.loads(reader.out[-1])["counters"]
    assert stats["restarts"] == 1 and stats["batches_lost"] == 0, stats


def test_B26_numbers_that_go_on_and_no_proof():
    """The same, and the number that would tell has left the buffer: nobody
    knows whose the answer is, so nothing of before is shown as exact."""
    live, replay = places(2)
    with Reader(live, replay) as reader:
        with pipe(live, replay) as one:
            one.say(*(store(n) for n in range(10)))
            reader.until_exact(range(10))
            one.signal(signal.SIGKILL)
        with pipe(live, replay, "--buffer-steps", "2") as two:
            two.say(*(store(100 + n) for n in range(14)))
            reader.until(lambda r: r.state() == "degraded")
            assert reader.held() == names([112, 113]), reader.held()
            two.say('{"type":"AllBlocksCleared"}', store(7))
            reader.until_exact([7])


def test_B13_a_small_gap_wipes_nothing():
    """10,000 blocks, one batch lost and repaired: at no moment fewer."""
    live, replay = places(2)
    with pipe(live, replay, "--drop", "1000") as publisher, \
            Reader(live, replay) as reader:
        publisher.say(*(store(*range(10 * n, 10 * n + 10))
                        for n in range(1000)))
        reader.until_exact(range(10000))
        reader.fewest = 10000
        publisher.say(store(10000), store(10001))
        reader.until_exact(range(10002))
        assert reader.fewest >= 9990, reader.fewest
        assert reader.notices("gap") and not reader.notices("lost")


def test_B14_a_gap_older_than_the_buffer():
    """Rebuilt in a twin from what there is, and said to be incomplete until
    the engine clears its cache."""
    live, replay = places(2)
    with pipe(live, replay, "--drop", "51-399", "--buffer-steps", "100") as \
            publisher, Reader(live, replay) as reader:
        publisher.say(*(store(n) for n in range(51)))
        reader.until_exact(range(51))
        reader.fewest = 51
        publisher.say(*(store(n) for n in range(51, 401)))
        reader.until(lambda r: r.state() == "degraded")
        # 301..400 were kept when 400 was sent.
        assert reader.held() >= names(range(301, 401)), reader.held()
        assert not reader.held() & names(range(51, 300)), reader.held()
        assert reader.fewest >= 51, "the old one stays until the new is there"
        lost = [(n["first"], n["last"]) for n in reader.notices("lost")]
        assert lost and lost[0][0] == 51 and lost[-1][1] in (299, 300), lost
        publisher.say('{"type":"AllBlocksCleared"}', store(7))
        reader.until_exact([7])


def test_B16_a_warm_and_idle_engine():
    """200 batches, then we come, and nothing else happens."""
    live, replay = places(2)
    with pipe(live, replay) as publisher:
        publisher.say(*(store(n) for n in range(200)))
        time.sleep(0.5)
        with Reader(live, replay) as reader:
            reader.until_exact(range(200))


if __name__ == "__main__":
    main(sys.modules[__name__])
