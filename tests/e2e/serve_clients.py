#!/usr/bin/env python3
"""kvevents query and kvevents sources against a running service, and against
servers that answer otherwise."""

import contextlib
import http.server
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading

from _command import BIN, FIXTURES, Running, main, run
from _serve import Service, held, publisher, source

EVENTS = """\
{"type":"BlockStored","block_hashes":[11,12,13],"token_ids":[1,2,3,4,5,6,7,8,9,\
10,11,12],"block_size":4}
{"type":"BlockStored","block_hashes":[11,12,13],"token_ids":[],"block_size":0,\
"medium":"CPU"}
{"type":"BlockRemoved","block_hashes":[12,13]}
{"type":"BlockStored","block_hashes":["0xb01"],"token_ids":[1,2,3,4],\
"block_size":4,"lora_name":"chat"}
"""


@contextlib.contextmanager
def fleet(*args):
    """A service of two workers: w0 has EVENTS, w1 a recording."""
    with tempfile.TemporaryDirectory() as at:
        events = pathlib.Path(at) / "events.jsonl"
        events.write_text(EVENTS)
        with publisher(events) as a, publisher() as b, Service(
                "--source", source("w0", a), "--source", source("w1", b),
                *args) as service:
            service.wait_live(2)
            yield service


def query(service, *args, stdin=""):
    return run("query", "--url", service.url(), *args, stdin=stdin)


def test_query():
    with fleet() as service:
        done = query(service, "--tokens", "1,2,3,4,5,6,7,8,9,10,11,12,13,14",
                     "--tiers", "GPU,CPU")
        assert done.returncode == 0 and done.stderr == "", done
        assert done.stdout.splitlines() == [
            "worker rank tier      alone   up to  0 %            100 % state",
            "w0        0 GPU           4       4 [######..............] live",
            "            CPU          12      12 [======############..]",
            "14 tokens asked for; ranks that hold any: 1",
        ], done.stdout
        # The same answer as of Python's client.
        answer = json.loads(query(service, "--tokens", "1 2 3 4 5 6 7 8",
                                  "--json").stdout)
        assert answer["prompts"][0]["workers"][0] == service.query(
            list(range(1, 9)))["w0", 0]


def test_query_explains():
    with fleet() as service:
        done = query(service, "-t", "1,2,3,4,99,99,99,99", "--explain")
        assert re.search(r"^w0 +0 GPU +4 +4 ", done.stdout, re.M), done.stdout
        assert re.search(r"^  ended at 4, not_stored: ", done.stdout, re.M)
        assert re.search(r"^w1 +0 GPU +0 +0 ", done.stdout, re.M), done.stdout
        done = query(service, "-t", "1,2,3,4,99,99,99,99", "-x", "-w", "w1")
        assert "w0" not in done.stdout and "w1" in done.stdout, done.stdout


def test_ways_to_ask():
    tokens = next(iter(held().values()))
    with fleet() as service:
        text = " ".join(map(str, tokens))
        for args, stdin in ([["--tokens-file", "-"], text],
                            [["--tokens", text], ""]):
            done = query(service, *args, stdin=stdin)
            assert re.search(rf"^w1 .* {len(tokens)} +{len(tokens)} \[#+\]",
                             done.stdout, re.M), done
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(str(tokens))
            file.flush()
            assert query(service, "--tokens-file",
                         file.name).stdout == done.stdout
        # Engine hashes, and content hashes with their size.
        done = query(service, "--hashes", "11,12", "--block-size", "4")
        assert re.search(r"^w0 +0 GPU +4 +4 ", done.stdout, re.M), done
        contents = run("hash", "1,2,3,4,5,6,7,8", "--block-size", "4",
                       "--json")
        assert contents.returncode == 0, contents
        found = re.findall(r'"hash":"(\d+)"', contents.stdout)
        assert len(found) == 2, contents.stdout
        done = query(service, "--content-hashes", ",".join(found),
                     "--block-size", "4")
        assert re.search(r"^w0 +0 GPU +4 +4 ", done.stdout, re.M), done
        assert re.search(r"^ +CPU +8 +8 \[", done.stdout, re.M), done
        # An adapter is another prompt.
        done = query(service, "-t", "1,2,3,4", "--lora-name", "chat")
        assert re.search(r"^w0 +0 GPU +4 +4 ", done.stdout, re.M), done
        done = query(service, "-t", "1,2,3,4", "--cache-salt", "x")
        assert "ranks that hold any: 0" in done.stdout, done


def test_query_is_refused():
    with fleet() as service:
        for args, texts in [
                ([], ["0 questions", "--tokens-file"]),
                (["--tokens", "1", "--hashes", "2"], ["2 questions"]),
                (["--tokens", "1", "x"], ["'x'", "there are none"]),
                (["--tokens", "1,y"], ["--tokens"]),
                (["--tokens", ""], ["empty"]),
                (["--tokns", "1"], ["'--tokns'", "'--tokens'"]),
                (["--tokens-file", "/nonexistent"], ["/nonexistent"])]:
            done = query(service, *args)
            assert done.returncode == 2, (args, done)
            assert len(done.stderr.splitlines()) == 1, done.stderr
            for text in texts:
                assert text in done.stderr, (args, done.stderr)
        done = query(service, "--model", "nobody", "--tokens", "1")
        assert done.returncode == 1 and "404" in done.stderr, done
        done = query(service, "--tokens", "1", "--tiers", "RAM")
        assert done.returncode == 1 and "422" in done.stderr, done
        # Whose text is never repeated: the tokens.
        done = query(service, "--tokens", "31415926,99999999999")
        assert done.returncode == 2 and "31415926" not in done.stderr, done


def test_sources():
    with fleet() as service:
        url = ["sources", "--url", service.url()]
        done = run(*url)
        lines = done.stdout.splitlines()
        assert done.returncode == 0 and len(lines) == 3, done
        assert re.fullmatch(r" id worker rank state      reason +since  number "
                            r" blocks lost batch", lines[0]), lines
        assert re.fullmatch(r"  1 w0        0 live       caught_up + \d+s +3 +5"
                            r" +0 + \d+s", lines[1]), lines
        assert max(map(len, lines)) <= 80
        done = run(*url, "--worker", "w1")
        assert "w0" not in done.stdout and " w1 " in done.stdout, done
        assert run(*url, "-m", "nobody").stdout == "no sources\n"
        answer = json.loads(run(*url, "--json").stdout)
        assert [s["worker"] for s in answer["sources"]] == ["w0", "w1"]

        one = service.sources()["w0", 0]["id"]
        done = run(*url, "--pause", str(one))
        assert done.stdout == f"source {one} is paused\n", done
        assert re.search(r"w0 +0 degraded +paused ", run(*url).stdout)
        done = run(*url, "--pause", str(one))
        assert done.returncode == 1 and "409" in done.stderr, done
        assert run(*url, "--resume", str(one)).returncode == 0
        service.wait_live(2)
        assert run(*url, "--clear", str(one)).returncode == 0
        assert service.query([1, 2, 3, 4]) == {}
        assert run(*url, "--remove", str(one)).returncode == 0
        assert set(service.sources()) == {("w1", 0)}
        done = run(*url, "--remove", str(one))
        assert done.returncode == 1 and "404" in done.stderr, done
        done = run(*url, "--remove", "1", "--pause", "1")
        assert done.returncode == 2 and "one of them" in done.stderr, done


def test_sources_again_and_again():
    with fleet() as service:
        with Running("sources", "--url", service.url(), "--watch",
                     "1") as watching:
            watching.wait_for(r"^$", lines=watching.out)
            while len([x for x in watching.out if " w0 " in x]) < 2:
                watching.wait_for(r" w1 ", lines=watching.out)
            watching.signal()
            assert watching.end() == 130


def test_token_and_variables():
    with tempfile.TemporaryDirectory() as at:
        tokens = pathlib.Path(at) / "tokens"
        tokens.write_text("# comment\n\n  the-token  \nother-token\n")
        with Service("--token-file", tokens) as service:
            url = ["--url", service.url() + "/"]
            done = run("sources", *url)
            assert done.returncode == 1, done
            assert "401" in done.stderr and "--token-file" in done.stderr
            done = run("sources", *url, "--token-file", str(tokens))
            assert done.stdout == "no sources\n", done
            done = subprocess.run(
                ["env", f"KVEVENTS_URL={service.url()}",
                 "http_proxy=http://127.0.0.1:1", BIN, "sources",
                 "--token-file", tokens], capture_output=True, text=True)
            assert done.stdout == "no sources\n", done
            empty = pathlib.Path(at) / "empty"
            empty.write_text("# none\n")
            for file, text in (empty, "no token in it"), ("/nonexistent",
                                                          "No such file"):
                done = run("sources", *url, "--token-file", str(file))
                assert done.returncode == 2 and text in done.stderr, done


CERTIFICATE = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
               "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
               "-subj", "/CN=kvevents", "-addext",
               "subjectAltName=IP:127.0.0.1"]


def test_tls():
    if not shutil.which("openssl"):
        print("     no openssl that makes a certificate")
        return
    with tempfile.TemporaryDirectory() as at:
        cert, key = f"{at}/cert.pem", f"{at}/key.pem"
        subprocess.run([*CERTIFICATE, "-keyout", key, "-out", cert],
                       check=True, capture_output=True)
        with Service("--tls-cert", cert, "--tls-key", key) as service:
            url = f"https://127.0.0.1:{service.port}"
            done = run("sources", "--url", url, "--cacert", cert)
            assert done.stdout == "no sources\n", done
            done = run("sources", "--url", url)
            assert done.returncode == 1 and "certificate" in done.stderr, done
            # And between services.
            with Service("--peers", url, "--peer-cacert", cert) as other:
                other.wait_for("event=peer_loaded .*sources=0")
            with Service("--peers", url) as other:
                other.wait_for("event=peer_failed .*certificate")
                other.wait_for("event=no_peer")


class Stranger(http.server.BaseHTTPRequestHandler):
    """A server that is another one, or broken."""

    ANSWERS = {
        ("html", "sources"): (200, b"<html>hello</html>"),
        ("empty", "sources"): (200, b""),
        ("list", "sources"): (200, b"[1, 2]"),
        ("wrong", "sources"): (200, b'{"sources": [{"id": "x", "worker": 7, '
                                   b'"blocks": [], "counters": 3}, 5, null]}'),
        ("teapot", "sources"): (418, b""),
        ("error", "sources"): (500, b'{"error": "out of \\u001b[2Jtea"}'),
        ("html", "query"): (200, b"<html>hello</html>"),
        ("wrong", "query"): (200, b'{"prompts": [{"tokens": "x", "workers": '
                                 b'[{"tiers": {"GPU": 5}, "rank": []}, 7]}, '
                                 b'null]}'),
    }

    def do_GET(self):
        parts = self.path.split("/")
        status, text = self.ANSWERS.get((parts[1], parts[-1]), (404, b""))
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *args):
        pass


def test_strangers():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as s:
        threading.Thread(target=s.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{s.server_port}"
        for path, status, text in [
                ("html", 1, "none of this service's"),
                ("empty", 1, "none of this service's"),
                ("list", 1, "none of this service's"),
                ("wrong", 0, ""), ("teapot", 1, "418"),
                ("error", 1, "500: out of ?[2Jtea"),
                ("nothing", 1, "404: there is no such path")]:
            done = run("sources", "--url", f"{url}/{path}")
            assert done.returncode == status, (path, done)
            assert text in done.stderr, (path, done)
        for path, status in ("html", 1), ("wrong", 0):
            done = run("query", "--url", f"{url}/{path}", "--tokens", "1")
            assert done.returncode == status, (path, done)
        s.shutdown()
    done = run("sources", "--url", url)
    assert done.returncode == 1 and "nobody answers there" in done.stderr
    for bad in "127.0.0.1:8090", "ftp://x", "http://":
        done = run("sources", "--url", bad)
        assert done.returncode == 2 and "http://HOST:PORT" in done.stderr


if __name__ == "__main__":
    main(sys.modules[__name__])
