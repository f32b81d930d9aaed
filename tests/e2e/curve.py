#!/usr/bin/env python3
"""Encrypted streams: with the right keys everything arrives, with wrong ones
nothing, and --curve-allow lets in only whom it names."""

import contextlib
import pathlib
import sys
import tempfile

from _command import FIXTURES, Publisher, main, watch

FILE = str(FIXTURES / "sha256-int-defaults.jsonl")

# The key pairs of ZeroMQ's manual: known to all, good for tests.
SERVER = ("rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7",
          "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6")
CLIENT = ("Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID",
          "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs")


@contextlib.contextmanager
def files():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name, text in [("server", "\n".join(SERVER)),
                           ("client", "# keys\n\n" + "\n".join(CLIENT)),
                           ("allow", CLIENT[0]), ("nobody", SERVER[0])]:
            (folder / name).write_text(text + "\n")
        yield folder


def received(publisher, *args):
    done = watch(publisher, "-n", "10", "--timeout", "2", *args)
    return done.stdout.count("Received event batch")


def test_right_and_wrong_keys():
    with files() as keys, Publisher(
            FILE, "--curve-keys", str(keys / "server")) as publisher:
        assert received(publisher, "--curve-server-key", SERVER[0],
                        "--curve-keys", str(keys / "client")) == 10
        assert received(publisher, "--curve-server-key", CLIENT[0],
                        "--curve-keys", str(keys / "client")) == 0
        assert received(publisher) == 0


def test_allow():
    for name, count in ("allow", 10), ("nobody", 0):
        with files() as keys, Publisher(
                FILE, "--curve-keys", str(keys / "server"), "--curve-allow",
                str(keys / name)) as publisher:
            assert received(publisher, "--curve-server-key", SERVER[0],
                            "--curve-keys", str(keys / "client")) == count, \
                name


if __name__ == "__main__":
    main(sys.modules[__name__])
