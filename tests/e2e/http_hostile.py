#!/usr/bin/env python3
"""What strangers send to kvevents serve: wrong bodies, methods and headers,
slow ones, no token, a wrong certificate. A 4xx or an end, never a crash.

ctest-timeout: 240
"""

import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time

from _command import LIMIT, ROOT, main
from _serve import Service

DIALECTS = ["/register", "/unregister", "/workers", "/query", "/query_by_hash",
            "/dump", "/services", "/global_view", "/register_peer",
            "/deregister_peer", "/peers", "/health", "/metrics", "/ready",
            "/test/pause_listener", "/test/resume_listener", "/reopen_logs"]
METHODS = ["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS", "X"]
SECRET = 987654321  # a token id that must not be in any log


def paths():
    """Every path that is documented, and those of the dialects."""
    document = json.loads((ROOT / "docs" / "openapi.json").read_text())
    found = [re.sub(r"\{\w+\}", "1", path) for path in document["paths"]]
    return sorted(set(found + DIALECTS))


def streams(path):
    return path in ("/v1/events", "/v1/dump", "/v1/state", "/dump",
                    "/global_view")


def bodies():
    """Bodies that no path takes."""
    deep = 100_000
    number = "9" * 5000
    return [
        b"", b" ", b"null", b"0", b'""', b"[]", b"{", b"}", b"[[", b'{"',
        b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,', b'{"a":1,}', b"{'a':1}",
        b'{"a":1}{"a":1}', b'{"a":1} x', b"\xff\xfe{}", b"\x00" * 100,
        b'{"model":"\xff"}', b'{"model":"\\ud800"}', b'{"model":"\\x"}',
        b"[" * deep, b'{"a":' * deep, b"[" * deep + b"]" * deep,
        b'{"model":"m","tokens":' + b"[" * deep + b"]" * deep + b"}",
        f'{{"model":"m","tokens":[{number}]}}'.encode(),
        b'{"model":"m","tokens":[1e999]}', b'{"model":"m","tokens":[-1]}',
        b'{"model":"m","tokens":[4294967296]}',
        b'{"model":"m","tokens":[1.5]}', b'{"model":"m","tokens":["a"]}',
        b'{"model":"m","tokens":{"a":1}}', b'{"model":"m","tokens":null}',
        f'{{"model":"m","tokens":[{SECRET},-5]}}'.encode(),
        f'{{"model_name":"m","token_ids":[{SECRET},"x"]}}'.encode(),
        f'{{"model":"m","token_ids":[{SECRET},'.encode(),
        b'{"model":1,"tokens":[1]}', b'{"model":["m"],"tokens":[1]}',
        b'{"model_name":"m","block_hashes":["zz"]}',
        b'{"model_name":"m","block_hashes":[18446744073709551616]}',
        b'{"model":"m","model":"n","tokens":[1]}',
        b'{"worker":7,"endpoint":7}', b'{"worker":"","endpoint":""}',
        b'{"worker":"w","endpoint":"tcp://"}',
        b'{"worker":"w","endpoint":"nothing"}',
        b'{"instance_id":-1,"endpoint":"x"}',
        b'{"instance_id":"' + b"i" * 100_000 + b'"}',
        b'{"endpoint":"tcp://127.0.0.1:99999","instance_id":"a"}',
        b"\x81\xa6tokens\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff",
        b"\xc1", b"\x91" * deep, b"\xdd\xff\xff\xff\xff" * 1000,
    ]


class Client:
    """Requests on one connection, opened anew when it was closed."""

    def __init__(self, service):
        self.service = service
        self.connection = None

    def ask(self, method, path, body=None, headers=None):
        """(status, headers, body); None: closed without an answer."""
        for _ in range(2):
            fresh = self.connection is None
            if fresh:
                self.connection = http.client.HTTPConnection(
                    "127.0.0.1", self.service.port, timeout=LIMIT)
            try:
                self.connection.request(method, path, body, headers or {})
                answer = self.connection.getresponse()
                return answer.status, answer.headers, answer.read()
            except (http.client.HTTPException, OSError):
                self.connection.close()
                self.connection = None
                if fresh:
                    return None
        return None


def check(answer, what):
    assert answer is not None, what
    status, headers, body = answer
    assert 200 <= status < 500, (what, status, body[:200])
    if headers.get("Content-Type") == "application/json" and body:
        json.loads(body)
    if status in (404, 405) and not body:
        assert headers.get("Content-Type") is None, (what, headers)
    if status == 405:
        assert headers.get("Allow"), what
    return status


def lines_without_secrets(service):
    text = "\n".join(service.err)
    assert str(SECRET) not in text
    return text


def memory(service):
    status = pathlib.Path(f"/proc/{service.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1))


def ended(service):
    service.signal(signal.SIGTERM)
    assert service.end() == 0, "\n".join(service.err[-20:])


# Each path with each body, in three types; each is refused, or taken where it
# is right by chance, and the next request on the connection is understood.
def test_bodies():
    with Service("--log-level", "debug") as service:
        client = Client(service)
        for path in paths():
            seen = set()
            for body in bodies():
                for media in ("application/json", "application/msgpack",
                              "text/html"):
                    answer = client.ask("POST", path, body,
                                        {"Content-Type": media})
                    seen.add(check(answer, (path, media, body[:60])))
            # These look at no body.
            if path not in ("/reopen_logs", "/test/pause_listener",
                            "/test/resume_listener"):
                assert seen - {200, 201}, path
        assert service.ask("GET", "/health")[0] == 200
        lines_without_secrets(service)
        ended(service)


def test_methods():
    with Service() as service:
        client = Client(service)
        for path in paths() + ["/", "/nothing", "/v1", "/v1/", "//", "/v1/x/y",
                               "/%2e%2e/etc/passwd", "/v1/sources/%00",
                               "/v1/workers/" + "w" * 5000]:
            for method in METHODS:
                if method in ("GET", "HEAD") and streams(path):
                    continue
                answer = client.ask(method, path)
                if method == "GET" and path == "/ready":
                    assert answer[0] in (200, 503)
                    continue
                if method == "HEAD":
                    assert not answer[2] and answer[0] in (
                        200, 400, 404, 405, 422, 503), (path, answer)
                    continue
                check(answer, (method, path))
        ended(service)


# Random changes to bodies that are right.
def test_random_bodies():
    rng = random.Random(20)
    good = [
        b'{"model":"m","tokens":[1,2,3,4],"explain":true,"limit":5}',
        b'{"model":"m","prompts":[[1,2],[3]],"tiers":["GPU"]}',
        b'{"model_name":"m","token_ids":[1,2,3],"routing_group":"default"}',
        b'{"model_name":"m","block_hashes":[1,-2,"0x3"]}',
        b'{"model":"m","token_ids":[1,2],"block_size":16,"tenant_id":"t"}',
        b"\x82\xa5model\xa1m\xa6tokens\x93\x01\x02\x03",
    ]
    with Service() as service:
        client = Client(service)
        for _ in range(3000):
            body = bytearray(rng.choice(good))
            for _ in range(rng.randrange(1, 5)):
                at = rng.randrange(len(body))
                kind = rng.randrange(4)
                if kind == 0:
                    body[at] = rng.randrange(256)
                elif kind == 1:
                    del body[at]
                elif kind == 2:
                    body.insert(at, rng.choice(b'{}[]",:0129-\\eE.\x00\xff'))
                else:
                    body[at:at] = body[:at]
                body = body[:4096] or bytearray(b"x")
            path = rng.choice(["/query", "/query_by_hash", "/v1/query"])
            media = rng.choice(["application/json", "application/msgpack"])
            check(client.ask("POST", path, bytes(body),
                             {"Content-Type": media}), (path, media, body))
        ended(service)


def test_limits():
    with Service("--max-body", "100000", "--max-tokens", "1000",
                 "--request-time", "3", "--max-client-connections",
                 "40") as service:
        client = Client(service)
        right = {"model": "m", "tokens": [1] * 1000}
        assert service.ask("POST", "/v1/query", right)[0] in (200, 404)
        right["tokens"].append(1)
        assert service.ask("POST", "/v1/query", right)[0] == 413
        assert check(client.ask("POST", "/v1/query", b"[" * 100_001,
                                {"Content-Type": "application/json"}),
                     "large") == 413
        # Announced only.
        with socket.create_connection(("127.0.0.1", service.port)) as s:
            s.settimeout(LIMIT)
            s.sendall(b"POST /v1/query HTTP/1.1\r\nHost: x\r\n"
                      b"Content-Length: 123456789012345\r\n\r\n")
            assert s.recv(100).startswith(b"HTTP/1.1 413 ")
        # Bodies that do not come: cut, while others are served.
        with contextlib.ExitStack() as stack:
            slow = [stack.enter_context(socket.create_connection(
                ("127.0.0.1", service.port))) for _ in range(20)]
            for s in slow:
                s.settimeout(LIMIT)
                s.sendall(b"POST /v1/query HTTP/1.1\r\nHost: x\r\n"
                          b"Content-Length: 1000\r\n\r\n{")
            assert service.ask("GET", "/health")[0] == 200
            for s in slow:
                assert s.recv(100) == b""
        metrics = service.ask("GET", "/metrics")[1]
        m = re.search(r"^\w*http_requests_slow\w* (\d+)", metrics, re.M)
        assert m and int(m.group(1)) == 20, metrics[-3000:]
        ended(service)


# Hundreds of connections with half a request each do not make it grow without
# bound, and do not keep it from answering.
def test_many_halves():
    with Service("--max-connections", "400") as service:
        before = memory(service)
        with contextlib.ExitStack() as stack:
            for _ in range(350):
                s = stack.enter_context(socket.create_connection(
                    ("127.0.0.1", service.port)))
                s.sendall(b"POST /query HTTP/1.1\r\nHost: x\r\n"
                          b"Content-Length: 8000000\r\n\r\n" + b"[" * 2000)
            assert service.ask("GET", "/health")[0] == 200
            grown = memory(service) - before
            if not os.environ.get("KVEVENTS_SANITIZE"):
                assert grown < 100 * 1024, f"{grown} kB for 350 halves"
        ended(service)


# Without the token: nothing but /health.
def test_token():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "tokens"
        path.write_text("# those who may\nsecret-one\n")
        with Service("--token-file", path) as service:
            client = Client(service)
            for headers in ({}, {"Authorization": "Bearer secret-two"},
                            {"Authorization": "Basic secret-one"},
                            {"Authorization": "Bearer secret-on"}):
                for target in paths() + ["/", "/nothing"]:
                    for method in METHODS:
                        status, fields, body = client.ask(
                            method, target, None, headers)
                        if target == "/health" and method in ("GET", "HEAD"):
                            assert status == 200
                            continue
                        assert status == 401, (method, target, status)
                        assert "Bearer" in fields["WWW-Authenticate"]
                        assert b"secret-one" not in body
            right = {"Authorization": "Bearer secret-one"}
            assert client.ask("GET", "/v1/sources", None, right)[0] == 200
            assert client.ask("GET", "/nothing", None, right)[0] == 404

            # Another one, without a restart.
            path.write_text("secret-three\n")
            service.signal(signal.SIGHUP)
            service.wait_until(lambda s: s.ask(
                "GET", "/v1/sources", token="secret-three")[0] == 200)
            assert client.ask("GET", "/v1/sources", None, right)[0] == 401
            text = "\n".join(service.err)
            assert "secret-" not in text, text
            ended(service)


def certificate(folder, name):
    done = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
         "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
         f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout",
         folder / "key.pem", "-out", folder / "cert.pem"],
        capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr


def common_name(port, cafile):
    """The name in the certificate, seen by a client that checks it."""
    context = ssl.create_default_context(cafile=cafile)
    with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as raw:
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as s:
            s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert s.recv(100).startswith(b"HTTP/1.1 200 ")
            assert s.version() in ("TLSv1.2", "TLSv1.3")
            return dict(pair[0] for pair in s.getpeercert()["subject"])[
                "commonName"]


def test_tls():
    try:
        subprocess.run(["openssl", "version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        print("openssl, which makes the certificate, is not there")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        certificate(folder, "one")
        with Service("--tls-cert", folder / "cert.pem", "--tls-key",
                     folder / "key.pem") as service:
            assert common_name(service.port, folder / "cert.pem") == "one"
            # No TLS: closed, not answered.
            with socket.create_connection(
                    ("127.0.0.1", service.port), timeout=LIMIT) as s:
                s.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                with contextlib.suppress(ConnectionError):
                    assert not s.recv(100).startswith(b"HTTP/1.1 200")
            certificate(folder, "two")
            service.signal(signal.SIGHUP)
            end = time.monotonic() + LIMIT
            while True:
                with contextlib.suppress(ssl.SSLError):
                    if common_name(
                            service.port, folder / "cert.pem") == "two":
                        break
                assert time.monotonic() < end, "\n".join(service.err)
                time.sleep(0.05)
            ended(service)


if __name__ == "__main__":
    main(sys.modules[__name__])
