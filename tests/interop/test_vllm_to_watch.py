#!/usr/bin/env python3
# ctest-timeout: 300
"""The real vLLM publisher of several releases, received by kvevents watch.

Each release's ZmqEventPublisher runs in a process of its own; a relay before
the reader withholds live messages, so that they must come by replay. What
watch --format json says it received is compared with what was published,
field by field, in order, each once.

    test_vllm_to_watch.py [--reference] [--release R]... [SCENARIO...]

With --reference a plain pyzmq reader takes the place of watch: the judges are
checked by it.
"""

import argparse
import concurrent.futures
import sys
import time
import traceback

import zmq

import _batches
import _harness
import _vllm_class
from _harness import Checks, Relay, ReplayTap, VllmPeer, ranges


class Stage:
    """What one scenario has at hand: a publisher of a release, and readers;
    all of it is ended with the stage."""

    def __init__(self, release, reader, checks, name):
        self.release = release
        self.make_reader = reader
        self.checks = checks
        self.name = name
        self.open = []

    def keep(self, thing):
        self.open.append(thing)
        return thing

    def publisher(self, **options):
        peer = self.keep(VllmPeer(self.release))
        peer.open(**options)
        return peer

    def relay(self, peer, *withheld):
        numbers = set(withheld)
        return self.keep(Relay(peer.live, lambda n, life: n in numbers))

    def tap(self, peer):
        return self.keep(ReplayTap(peer.replay))

    def reader(self, live, replay, **options):
        return self.keep(self.make_reader(live, replay, **options))

    def check(self, what, right, detail=""):
        return self.checks(f"vLLM {self.release} {self.name}: {what}", right,
                           detail)

    def equal(self, what, got, wanted):
        return self.checks.equal(
            f"vLLM {self.release} {self.name}: {what}", got, wanted)

    def all_there(self, got, wanted):
        """Got are the batches of wanted = (life, first, end): every one, in
        order, once, unchanged."""
        life, first, end, *tokens = wanted
        numbers = [number for number, _ in got]
        if not self.equal(f"{end - first} batches in order, each once",
                          ranges(numbers), ranges(range(first, end))):
            return
        wrong = [(number, events, _batches.batch(life, number, *tokens))
                 for number, events in got
                 if events != _batches.batch(life, number, *tokens)]
        self.check("every field as it was published", not wrong,
                   wrong and _harness.shortened(wrong[0], 1500))

    def end(self):
        for thing in reversed(self.open):
            if isinstance(thing, VllmPeer):
                thing.kill()
            elif isinstance(thing, _harness.Reader):
                self.equal("interrupted, the reader ends with 130",
                           thing.close(), 130)
                bad = getattr(thing, "unreadable", [])
                self.check("every line was understood, no faults", not bad,
                           _harness.shortened(bad))
            else:
                thing.close()


# ---------------------------------------------------------------------------
# Scenarios. Each is one kind of trouble.


def lost_messages(stage):
    """Single messages, a run, and the last one are withheld (B1, B11)."""
    peer = stage.publisher(topic="kv-events")
    relay = stage.relay(peer, 3, *range(10, 15), 40, 59)
    tap = stage.tap(peer)
    reader = stage.reader(relay.endpoint, tap.endpoint, topic="kv-events")
    relay.wait_for_reader()
    peer.publish(0, 60, pause=0.005)
    stage.check("the last batch came",
                reader.wait(lambda r: r.has(59)), reader.numbers()[-3:])
    stage.all_there(reader.batches(), (1, 0, 60))
    stage.equal("the relay withheld", relay.withheld,
                [3, 10, 11, 12, 13, 14, 40, 59])
    by_replay = reader.replayed()
    stage.check("the withheld ones came by replay",
                by_replay >= set(relay.withheld), ranges(sorted(by_replay)))
    stage.equal("nothing was said to be lost", reader.lost(), [])
    # The gaps were repaired; nothing else was touched (B13).
    stage.equal("nothing was cleared", reader.of("clear"), [])


def short_buffer(stage):
    """The gap is longer than the replay buffer (B14)."""
    peer = stage.publisher(buffer_steps=15)
    relay = stage.relay(peer, *range(10, 55))
    reader = stage.reader(relay.endpoint, peer.replay)
    relay.wait_for_reader()
    peer.publish(0, 56)
    stage.check("the last batch came", reader.wait(lambda r: r.has(55)))
    # The buffer is 41..55 now: 10..40 are gone for good.
    stage.equal("10..40 are said to be lost", ranges(reader.lost()), "10..40")
    stage.equal("what there was before and after",
                ranges(reader.numbers()), "0..9, 41..55")
    # What is new replaces the old when the answer has ended.
    stage.check("the reader was told to forget what it had",
                reader.wait(lambda r: r.forgot()))
    stage.all_there(reader.standing(), (1, 41, 56))
    peer.publish(56, 2)
    stage.check("goes on", reader.wait(lambda r: r.has(57)))
    time.sleep(1.0)
    states = reader.states()
    stage.check("degraded, and stays so",
                not states or states[-1] == "degraded", states)
    # Batch 59 says that all is cleared, so nothing lost matters any more.
    peer.publish(58, 2)
    stage.check("goes on", reader.wait(lambda r: r.has(59)))
    time.sleep(1.0)
    states = reader.states()
    stage.check("a clear makes it whole", not states or states[-1] == "live",
                states)
    stage.equal("lost once", ranges(reader.lost()), "10..40")


def slow_reader(stage):
    """10,000 batches replayed to a reader that reads nothing for 2 s (B4)."""
    count, tokens = 10_000, 300
    peer = stage.publisher()
    for first in range(0, count, 1000):
        peer.publish(first, 1000, tokens=tokens)
    # The publisher stands until the request is there, and the reader until
    # the answer has been sent.
    peer.pause()
    reader = stage.reader(peer.live, peer.replay)
    time.sleep(0.7)
    reader.pause()
    peer.resume()
    time.sleep(2.0)
    begun = time.monotonic()
    reader.resume()
    stage.check("the last batch came",
                reader.wait(lambda r: r.has(count - 1),
                            2 * _harness.PATIENCE),
                f"{time.monotonic() - begun:.1f} s")
    stage.all_there(reader.batches(), (1, 0, count, tokens))
    stage.equal("nothing was said to be lost", reader.lost(), [])
    reader.close()
    # 0.33 keeps a whole answer for the reader; older ones lose what is
    # behind some 1,000 messages, so that it has to be asked for again.
    stage.check("each request brought something",
                1 <= reader.requests <= count / 500,
                f"{reader.requests} replay requests")


def slow_live(stage):
    """A reader that stands for 2 s while 10,000 batches are published; the
    publisher may keep 500 for it and drops the rest."""
    count, tokens = 10_000, 300
    peer = stage.publisher(hwm=500)
    reader = stage.reader(peer.live, peer.replay)
    time.sleep(0.3)
    peer.publish(0, 10, tokens=tokens)
    stage.check("the first batches came", reader.wait(lambda r: r.has(9)))
    reader.pause()
    for first in range(10, count, 1110):
        peer.publish(first, 1110, tokens=tokens)
    time.sleep(2.0)
    begun = time.monotonic()
    reader.resume()
    stage.check("the last batch came",
                reader.wait(lambda r: r.has(count - 1),
                            2 * _harness.PATIENCE),
                f"{time.monotonic() - begun:.1f} s")
    stage.all_there(reader.batches(), (1, 0, count, tokens))
    by_replay = len(reader.replayed())
    stage.check("what was dropped came by replay", 0 < by_replay < count,
                f"{by_replay} batches")
    stage.equal("nothing was said to be lost", reader.lost(), [])


def bad_requests(stage):
    """Replay requests of wrong shapes reach the publisher (B1)."""
    peer = stage.publisher()
    peer.publish(0, 5)
    context = zmq.Context()
    with context.socket(zmq.DEALER) as dealer:
        dealer.linger = 200
        dealer.connect(peer.replay)
        for frames in ([b"\0" * 8], [b"", b"\0" * 8, b"more"],
                       [b"", b"", b"", b""], [b"", b"snapshot"],
                       [b"", b"\xff" * 16]):
            dealer.send_multipart(frames)
        time.sleep(0.2)
    context.term()
    relay = stage.relay(peer, 7)
    reader = stage.reader(relay.endpoint, peer.replay)
    relay.wait_for_reader()
    peer.publish(5, 5)
    stage.check("the last batch came", reader.wait(lambda r: r.has(9)))
    stage.all_there(reader.batches(), (1, 0, 10))
    stage.check("the publisher runs", peer.do("alive")["alive"])


def late_start(stage):
    """200 batches were published, then nothing, then watch starts (B16)."""
    peer = stage.publisher()
    peer.publish(0, 200)
    begun = time.monotonic()
    reader = stage.reader(peer.live, peer.replay)
    stage.check("the last batch came", reader.wait(lambda r: r.has(199)),
                f"{time.monotonic() - begun:.2f} s after the start")
    stage.all_there(reader.batches(), (1, 0, 200))
    stage.check("all by replay",
                reader.replayed() == set(range(200)))


def hole(stage):
    """Batch 8 cannot be encoded: its number is in no replay (B25)."""
    peer = stage.publisher()
    tap = stage.tap(peer)
    reader = stage.reader(peer.live, tap.endpoint)
    stage.check("the reader asked at once",
                reader.wait(lambda r: tap.starts, 5))
    time.sleep(0.3)
    peer.publish(0, 8)
    before = len(tap.starts)
    peer.do("spoil")
    peer.publish(9, 7)
    stage.check("the last batch came", reader.wait(lambda r: r.has(15)))
    time.sleep(2.0)
    stage.equal("8 is lost, once", reader.lost(), [8])
    # A reader that starts anew may be told all of it again.
    got = reader.standing()
    came = ranges(n for n, _ in got)
    stage.check("all others, in order", came in
                ("0..7, 9..15",) + ("9..15",) * reader.forgot(), came)
    stage.check("each was there", set(reader.numbers()) ==
                set(range(16)) - {8}, ranges(reader.numbers()))
    stage.check("every field as it was published",
                all(events == _batches.batch(1, n)
                    for n, events in reader.batches()))
    # Probes ask from the last number; a search for 8 asks from 8 or below.
    asked = [start for start in tap.starts[before:] if start <= 8]
    stage.check("no endless requests for it", 1 <= len(asked) <= 4,
                f"asked from {tap.starts[before:]}")
    states = reader.states()
    stage.check("degraded", not states or states[-1] == "degraded", states)


def restart(stage):
    """The publisher is killed; a new one starts at 0 on its ports (B7)."""
    old = stage.publisher()
    reader = stage.reader(old.live, old.replay)
    time.sleep(0.3)
    old.publish(0, 10)
    stage.check("the first life came", reader.wait(lambda r: r.has(9)))
    stage.all_there(reader.batches(), (1, 0, 10))
    old.kill()
    new = stage.publisher(live=old.live, replay=old.replay)
    new.publish(0, 3, life=2)
    time.sleep(1.5)
    new.publish(3, 2, life=2)
    wanted = (4, _batches.batch(2, 4))
    stage.check("the new life came",
                reader.wait(lambda r: wanted in r.batches()))
    stage.check("the reader was told to forget the old life",
                reader.wait(lambda r: wanted in r.standing()))
    stage.all_there(reader.standing(), (2, 0, 5))


def tail_loss(stage):
    """The last message is lost and nothing follows: a probe finds it."""
    peer = stage.publisher()
    relay = stage.relay(peer, 9)
    reader = stage.reader(relay.endpoint, peer.replay)
    relay.wait_for_reader()
    peer.publish(0, 10)
    sent = time.monotonic()
    came = reader.wait(lambda r: r.has(9))
    took = time.monotonic() - sent
    stage.check("the last batch came", came, f"{took:.2f} s after it was sent")
    # One probe interval is 0.5 s; vLLM looks at requests every 0.1 s.
    stage.check("within about a second", took < _harness.PATIENCE / 10,
                f"{took:.2f} s")
    stage.all_there(reader.batches(), (1, 0, 10))
    stage.equal("it was withheld", relay.withheld, [9])


SCENARIOS = (slow_reader, slow_live, short_buffer, hole, restart,
             lost_messages, bad_requests, late_start, tail_loss)


def play(release, scenario, reader, checks):
    stage = Stage(release, reader, checks, scenario.__name__)
    try:
        scenario(stage)
    except Exception:
        checks(f"vLLM {release} {scenario.__name__}", False,
               traceback.format_exc())
    finally:
        stage.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--release", action="append")
    parser.add_argument("scenarios", nargs="*")
    arguments = parser.parse_args()

    if arguments.reference:
        reader = _harness.Reference
    else:
        _harness.command()
        reader = _harness.Watch
    have, lines = _vllm_class.available()
    releases = [release for release in have
                if not arguments.release or release in arguments.release]
    if not releases:
        _harness.skip("no vLLM release can be had here: " +
                      "; ".join(lines or ["none of those asked for"]))
    chosen = [scenario for scenario in SCENARIOS
              if not arguments.scenarios or
              scenario.__name__ in arguments.scenarios]

    # Mostly waiting, so several at a time even on two cores.
    checks = Checks()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for scenario in chosen:
            for release in releases:
                pool.submit(play, release, scenario, reader, checks)
    for line in lines:
        print(f"not tested with {line}")
    checks.finish()


if __name__ == "__main__":
    sys.exit(main())
