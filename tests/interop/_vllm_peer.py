"""A process that runs the real vLLM ZmqEventPublisher, told what to do by
lines on its standard input.

    _vllm_peer.py RELEASE

Each line is a JSON object; each is answered by one on standard output.

    {"do": "open", "live": EP, "replay": EP, "topic": T, ...}  a new publisher
    {"do": "publish", "life": l, "first": i, "n": n, ...}      batches of
        _batches.batch(), numbers are the publisher's own; "pause": seconds
        between two, "tokens": a block's size
    {"do": "spoil"}              a batch that cannot be encoded
    {"do": "alive"}              whether its thread runs
    {"do": "close"}              shut it down

Endpoints are bound; a port may be *.
"""

import json
import sys
import time

import _batches
import _vllm_class

import zmq


class Bound(str):
    """An endpoint on which vLLM binds. It binds those with a * or :: and
    connects to the rest, so that a given loopback port needs this."""

    def __contains__(self, part):
        return part == "*" or super().__contains__(part)


class Peer:
    def __init__(self, release):
        self.module = _vllm_class.load(release)
        self.publisher = None

    def do_open(self, live, replay=None, **options):
        peer = self

        class Publisher(self.module.ZmqEventPublisher):
            """Tells where it is: its thread does not run yet here."""

            def _socket_setup(self):
                super()._socket_setup()
                peer.at = [s and s.getsockopt_string(zmq.LAST_ENDPOINT)
                           for s in (self._pub, self._replay)]

        self.publisher = Publisher(
            0, endpoint=Bound(live),
            replay_endpoint=replay and Bound(replay), **options)
        return {"live": self.at[0], "replay": self.at[1]}

    def _sent(self):
        """Wait until the publisher's thread has nothing left to do."""
        while self.publisher._event_queue.qsize():
            time.sleep(0.001)
        time.sleep(0.02)
        return {}

    def do_publish(self, life, first, n, pause=0, tokens=_batches.SIZE):
        for i in range(first, first + n):
            events = [_batches.struct(self.module, event)
                      for event in _batches.batch(life, i, tokens)]
            self.publisher.publish(self.module.KVEventBatch(
                ts=1.7e9 + i, events=events))
            if pause:
                time.sleep(pause)
        return self._sent()

    def do_spoil(self):
        self.publisher.publish(self.module.KVEventBatch(
            ts=1.0, events=[object()]))
        self._sent()
        # It backs off for 0.1 s after a failure.
        time.sleep(0.15)
        return {}

    def do_alive(self):
        return {"alive": self.publisher._thread.is_alive()}

    def do_close(self):
        self.publisher.shutdown()
        return {}


def main():
    peer = Peer(sys.argv[1])
    for line in sys.stdin:
        arguments = json.loads(line)
        verb = arguments.pop("do")
        print(json.dumps(getattr(peer, "do_" + verb)(**arguments)), flush=True)


if __name__ == "__main__":
    main()
