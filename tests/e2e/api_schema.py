"""docs/openapi.json and the running service say the same.

ctest-timeout: 300

Every operation gets requests that are valid by the document, and many that are
not. Every answer must have a status that the document knows for it, and a body
that fits. Every route of the service's own interface is in the document, and
every path of the document is a route.
"""

import json
import os
import random
import re
import sys
import tempfile
import urllib.parse

from _command import ROOT
from _dialect import Engine, Service, raw, stored
from _schema import (DOCUMENT, FILE, check, faults, resolve, samples, spoilt)

SEED = int(os.environ.get("KVE_SEED", random.randrange(10**6)))
rng = random.Random(SEED)
METHODS = ("get", "post", "delete", "put", "patch")
answered = {}  # (operation, status): how often


def operations():
    for path, item in DOCUMENT["paths"].items():
        for method in METHODS:
            if method in item:
                yield path, method, item[method], item.get("parameters", [])


# ---- the document by itself ----

def check_document():
    assert DOCUMENT["openapi"].startswith("3.1.")
    walk_refs(DOCUMENT)
    ids = [op["operationId"] for _, _, op, _ in operations()]
    assert len(ids) == len(set(ids)), ids
    tags = {tag["name"] for tag in DOCUMENT["tags"]}
    for path, _, op, shared in operations():
        assert op["summary"] and set(op["tags"]) <= tags, path
        named = {resolve(p)["name"] for p in shared + op.get("parameters", [])
                 if resolve(p)["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", path)), path
        if op.get("security") != []:
            assert "401" in op["responses"], path
        if "requestBody" in op:
            check_examples(op["requestBody"]["content"], path)
            assert {"400", "413", "415", "422"} <= set(op["responses"]), path
        for status, response in op["responses"].items():
            check_examples(resolve(response).get("content", {}),
                           (path, status))
    unused = set(DOCUMENT["components"]["schemas"]) - used
    assert not unused, unused


used = set()


def walk_refs(node):
    if isinstance(node, dict):
        if "$ref" in node:
            used.add(node["$ref"].split("/")[-1])
            resolve(node)
        for value in node.values():
            walk_refs(value)
    elif isinstance(node, list):
        for value in node:
            walk_refs(value)


def check_examples(content, what):
    for media in content.values():
        if "example" in media:
            check(media["example"], media["schema"], what)


# ---- routes ----

def check_routes():
    """The tables of the sources against the document, both ways."""
    route = re.compile(
        r"{\s*((?:KVE_METHOD_\w+[\s|]*)+),\s*\"([^\"]+)\",\s*\w+,\s*([^}]*)}")
    routes = []
    for file in sorted((ROOT / "src" / "http").glob("*.c")):
        text = file.read_text(encoding="utf-8")
        for table in re.findall(
                r"kve_routes_(?:v1|live|operation)\[\] = {(.*?)\n};", text,
                re.S):
            for methods, path, flags in route.findall(table):
                routes.append(({m.lower() for m in re.findall(
                    r"KVE_METHOD_(\w+)", methods)}, path, "PREFIX" in flags))
    assert len(routes) >= 14, routes
    documented = {(path, method) for path, method, _, _ in operations()}
    for methods, path, prefix in routes:
        for method in methods:
            fits = [p for p, m in documented if m == method and
                    (p.startswith(path + "{") if prefix else p == path)]
            assert fits, ("not in the document", method, path)
    for path, method in documented:
        fits = [r for r in routes if method in r[0] and
                (path.startswith(r[1] + "{") if r[2] else path == r[1])]
        assert fits, ("not a route", method, path)


# ---- requests ----

def place(path, parameters):
    """The path with plain values in it."""
    for p in map(resolve, parameters):
        if p["in"] == "path":
            path = path.replace("{" + p["name"] + "}", urllib.parse.quote(
                str(p.get("example", 1)), safe=""))
    return path


def judge(op, got, what):
    """The answer fits what the document says of its status."""
    status, media, answer = got
    answered[op["operationId"], status] = answered.get(
        (op["operationId"], status), 0) + 1
    assert str(status) in op["responses"], (what, status, answer[:300])
    content = resolve(op["responses"][str(status)]).get("content")
    if not content:
        assert answer == b"" and media is None, (what, media, answer[:300])
        return
    plain = (media or "").split(";")[0]
    assert plain in content, (what, media)
    schema = content[plain]["schema"]
    if plain == "application/json":
        value = json.loads(answer)
        check(value, schema, (what, answer[:300]))
        if status >= 400 and "error" in value:
            assert value["status"] == status and value["error"], what
            assert "\n" not in value["error"], what
    elif plain == "application/x-ndjson":
        for line in answer.decode().splitlines():
            check(json.loads(line), schema, (what, line))


def ask(service, op, method, path, body=None, media="application/json"):
    got = service.call(method.upper(), path, body, media)
    judge(op, got, (method, path, body if body is None else body[:300]))
    return got[0]


def announced(service, method, path, length):
    """The answer to the head of a request whose body would be so long; as
    Service.call() has it."""
    head, _, body = raw(service.port, (
        f"{method.upper()} {path} HTTP/1.1\r\nHost: x\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n").encode()).partition(
            b"\r\n\r\n")
    status = int(head.split()[1])
    assert status == 413, head
    media = re.search(rb"(?im)^content-type: *([^\r]*)", head)
    return status, media and media[1].decode(), body


class Values:
    """What a schema can not say: endpoints are addresses, workers are told
    apart, and the model of questions is one that is known."""

    def __init__(self):
        self.n = 0

    def mend(self, op, body):
        self.n += 1
        if op["operationId"] == "addSource":
            if "worker" in body:
                body["worker"] = f"{body['worker']}{self.n}"
            for name in ("endpoint", "replay_endpoint", "snapshot_endpoint"):
                if body.get(name):
                    body[name] = f"tcp://127.0.0.1:{1 + self.n % 1000}"
        if op["operationId"] == "query":
            body["model"] = "m"
            body.pop("tenant", None)
            if body.get("block_size"):  # times hashes: at most 2^32 - 1
                body["block_size"] = min(body["block_size"], 10**6)
            if body.get("tiers"):
                body["tiers"] = list(dict.fromkeys(
                    t.upper() for t in body["tiers"]))
        return body


def try_bodies(service, path, method, op, values):
    schema = resolve(op["requestBody"]["content"]["application/json"]["schema"])
    valid = [values.mend(op, dict(v)) for v in samples(schema, rng)]
    for body in valid:
        check(body, schema, "made by the test itself")
        status = ask(service, op, method, path, json.dumps(body))
        assert status < 400 or status == 404, (path, body, status)
    for body in spoilt(valid[0], schema):
        wrong = faults(body, schema)
        status = ask(service, op, method, path, json.dumps(body))
        assert not wrong or status in (400, 413, 422), (
            path, str(body)[:500], wrong[:3], status)
    for text in ("", "{", "[]", "1", '"x"', "null", '{"a":1,}', "{'a':1}",
                 '{"a":}', "\xff{}", "[" * 100000, '{"a":"\\ud800"}'):
        status = ask(service, op, method, path, text.encode("latin-1"))
        assert status in (400, 422) or (
            text == "" and not op["requestBody"]["required"]), (path, text)
    for media in (None, "text/plain", "application/x-www-form-urlencoded"):
        assert ask(service, op, method, path, b"{}", media) == 415
    judge(op, announced(service, method, path, 9 << 20), (path, "announced"))


def try_parameters(service, path, method, op, shared):
    for p in map(resolve, shared + op.get("parameters", [])):
        texts = [str(v) for v in samples(p["schema"], rng)]
        texts += ["", "x", "-1", "99999999999999999999999", "%00", "a b",
                  "../..", "\u00e9"]
        for text in texts:
            quoted = urllib.parse.quote(text, safe="")
            if p["in"] == "query":
                at = f"{place(path, shared)}?{p['name']}={quoted}"
            elif quoted:
                at = path.replace("{" + p["name"] + "}", quoted) + "?model=m"
            else:
                continue
            if op["operationId"] != "events":
                ask(service, op, method, at)


def try_operation(service, path, method, op, shared, values):
    at = place(path, shared)
    if "requestBody" in op:
        try_bodies(service, at, method, op, values)
    elif op["operationId"] != "events":
        ask(service, op, method, at)
    if method == "get" and op["operationId"] != "events":
        status, _, body = service.call("HEAD", at, None, None)
        assert str(status) in op["responses"] and body == b"", at
    try_parameters(service, path, method, op, shared)


def try_methods(service):
    """Methods that are not in the document are refused."""
    for path, item in DOCUMENT["paths"].items():
        known = {m.upper() for m in METHODS if m in item}
        if "GET" in known:
            known |= {"HEAD"}
        for method in {"GET", "POST", "DELETE", "PUT", "PATCH", "HEAD"} - known:
            status, _, _ = service.call(
                method, place(path, item.get("parameters", [])), None, None)
            assert status in (404, 405), (method, path, status)


def test_document():
    check_document()
    check_routes()


def test_answers():
    values = Values()
    with Service() as service, Engine() as engine:
        served = service.call("GET", "/v1/openapi.json", None, None)
        assert served[2] == FILE.read_bytes()
        service.post("/v1/sources", {
            "worker": "w0", "model": "m", "endpoint": engine.endpoint}, 201)
        engine.wait_subscribed()
        engine.publish(stored([1, 2], [1, 2, 3, 4, 5, 6, 7, 8]))
        engine.publish(stored([3], [9, 9, 9, 9], 2, medium="CPU"))
        service.wait_number("w0", 1)
        ordered = sorted(
            operations(), key=lambda o: (
                o[1] == "delete", "clear" in o[0], o[0]))
        for path, method, op, shared in ordered:
            try_operation(service, path, method, op, shared, values)
        try_methods(service)
        assert service.call("GET", "/health", None, None)[0] == 200


def test_token():
    """Without the token nothing but /health is answered."""
    with tempfile.NamedTemporaryFile("w", suffix=".tokens") as file:
        file.write("a-token-of-some-length\n")
        file.flush()
        with Service("--token-file", file.name) as service:
            for path, method, op, shared in operations():
                at = place(path, shared)
                body = "{}" if "requestBody" in op else None
                status = ask(service, op, method, at, body)
                assert status == (200 if path == "/health" else 401), at


def main():
    print(f"KVE_SEED={SEED}")
    test_document()
    test_answers()
    test_token()
    for (name, status), n in sorted(answered.items()):
        print(f"{name} {status}: {n}")
    tried = {name for name, _ in answered}
    missing = {op["operationId"] for _, _, op, _ in operations()} - tried
    assert not missing, missing


if __name__ == "__main__":
    sys.exit(main())
