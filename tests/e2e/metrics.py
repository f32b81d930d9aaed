"""/metrics: what a strict reader of the format accepts, and what it says.

ctest-timeout: 300
"""

import json
import re
import shutil
import subprocess
import sys
import time

from _command import LIMIT, ROOT
from _dialect import Engine, Service, stored
from _metrics import grown, parse, value

ODD = 'odd "worker" \\ with\nlines \u00e9'
CONTRIB = ROOT / "contrib"


def scrape(service):
    status, media, body = service.call("GET", "/metrics", None, None)
    assert status == 200 and media == "text/plain; version=0.0.4", media
    return parse(body)


def until(service, name, least, **labels):
    end = time.monotonic() + LIMIT
    while True:
        families = scrape(service)
        if value(families, name, **labels) >= least:
            return families
        assert time.monotonic() < end, (name, labels)
        time.sleep(0.02)


def counters_of_headers():
    """(map, name) of each counter in counters.h: nothing is left out."""
    text = (ROOT / "include" / "kvevents" / "counters.h").read_text()
    for part in ("SUB", "INDEX", "INGEST", "HTTP"):
        table = re.search(
            rf"#define KVE_{part}_COUNTER_MAP\(X\)(.*?)\n\n", text, re.S)[1]
        for name in re.findall(r'X\(\w+, \d+,\s*\\?\s*"(\w+)"', table):
            yield part, name


def check_complete(families):
    found = 0
    for part, name in counters_of_headers():
        found += 1
        whole = name if part == "HTTP" else f"ingest_{name}"
        assert families[f"kvevents_{whole}_total"].kind == "counter", name
        if part != "HTTP":
            assert f"kvevents_source_{name}_total" in families, name
    assert found > 80, found
    for name in ("kvevents_query_seconds", "process_cpu_seconds_total",
                 "process_resident_memory_bytes", "kvevents_build_info"):
        assert name in families, name


def check_whole_and_parts(families):
    """While no source was removed, the whole is the sum of its parts."""
    for part, name in counters_of_headers():
        if part == "HTTP":
            continue
        whole = value(families, f"kvevents_ingest_{name}_total")
        parts = value(families, f"kvevents_source_{name}_total")
        assert whole == parts, (name, whole, parts)


def check_state(families, **labels):
    states = {dict(pairs)["state"]: v for (_, pairs), v in
              families["kvevents_source_state"].samples.items()
              if labels.items() <= dict(pairs).items()}
    assert sorted(states.values()) == [0, 0, 0, 0, 1], states
    return [s for s, v in states.items() if v == 1][0]


def test_what_it_says():
    with Service() as service, Engine() as one, Engine() as two:
        empty = service.call("GET", "/metrics", None, None)[2]
        parse(empty)
        check_with_promtool(empty)
        first = service.post("/v1/sources", {
            "worker": "w0", "model": "m", "endpoint": one.endpoint}, 201)
        odd = service.post("/v1/sources", {
            "worker": ODD, "model": 'm"', "tenant": "t\\", "rank": 3,
            "endpoint": two.endpoint}, 201)
        one.wait_subscribed()
        two.wait_subscribed()
        one.publish(stored([1, 2], [1, 2, 3, 4, 5, 6, 7, 8]))
        one.publish(stored([9], [1, 1, 1, 1], 8, medium="CPU",
                           extra_keys=[None]))  # an orphan
        two.publish(stored([7], [1, 2, 3, 4]))
        service.wait_number("w0", 1)
        before = until(service, "kvevents_source_batches_applied_total", 1,
                       worker=ODD)
        check_complete(before)
        check_whole_and_parts(before)
        who = {"worker": ODD, "model": 'm"', "tenant": "t\\", "rank": "3",
               "source": str(odd["id"])}
        assert value(before, "kvevents_source_copies_stored_total", **who) == 1
        mine = {"source": str(first["id"])}
        assert value(before, "kvevents_source_blocks", tier="GPU", **mine) == 2
        assert value(before, "kvevents_source_blocks", tier="CPU", **mine) == 1
        assert value(before, "kvevents_source_waiting_blocks", **mine) == 1
        assert value(before, "kvevents_index_residencies", tier="GPU") == 3
        assert value(before, "kvevents_index_instances") == 2
        assert value(before, "kvevents_index_namespaces") == 2
        assert value(before, "kvevents_workers") == 2
        assert value(before, "kvevents_index_bytes") > 0
        assert value(before, "process_resident_memory_bytes") > 1 << 20
        age = value(before, "kvevents_source_last_batch_age_seconds", **mine)
        assert 0 <= age < LIMIT, age
        source = service.source("w0")
        assert check_state(before, **mine) == source["state"]
        assert value(before, "kvevents_source_connected", **mine) == 1
        check_changes(service, before, odd)


def check_changes(service, before, odd):
    for _ in range(5):
        service.post("/v1/query", {"model": "m", "tokens": [1, 2, 3, 4]})
    service.call("GET", "/v1/nothing", None, None)
    after = scrape(service)
    grown(before, after)

    def more(name):
        return value(after, name) - value(before, name)

    assert more("kvevents_query_seconds_count") == 5
    assert more("kvevents_http_requests_total") >= 6
    assert more("kvevents_http_errors_client_total") == 1
    assert more("kvevents_query_seconds_sum") > 0
    service.json("POST", f"/v1/sources/{odd['id']}/pause")
    paused = scrape(service)
    mine = {"source": str(odd["id"])}
    assert value(paused, "kvevents_source_paused", **mine) == 1
    assert check_state(paused, **mine) == "degraded"
    assert value(paused, "kvevents_sources_paused") == 1
    service.json("DELETE", f"/v1/sources/{odd['id']}")
    removed = scrape(service)
    grown(paused, removed)  # totals go on without it
    assert value(removed, "kvevents_workers") == 1
    assert str(odd["id"]) not in {
        dict(pairs).get("source")
        for family in removed.values() for _, pairs in family.samples}
    check_contrib(removed)


def test_many_sources():
    with Service() as service:
        for i in range(1000):
            service.post("/v1/sources", {
                "worker": f"w{i}", "endpoint": f"tcp://127.0.0.1:{1 + i}"},
                201)
        families = scrape(service)
        samples = families["kvevents_source_batches_lost_total"].samples
        assert len(samples) == 1000, len(samples)
        assert value(families, "kvevents_workers") == 1000


# ---- what is named elsewhere ----

WORDS = {
    "sum", "by", "rate", "increase", "topk", "min", "max", "on", "and", "or",
    "deriv", "histogram_quantile", "up", "le", "label_values"}


def names_in(expression):
    """Names of metrics in an expression: no labels, functions or units."""
    bare = re.sub(r"{[^}]*}|\[[^\]]*\]|\"[^\"]*\"", " ", expression)
    bare = re.sub(r"\b(by|on)\s*\([^)]*\)", " ", bare)
    return set(re.findall(r"\b[a-z][a-z0-9_]+\b", bare)) - WORDS


def expressions():
    for file in sorted(CONTRIB.glob("prometheus/*.yml")):
        text = file.read_text(encoding="utf-8")
        found = re.findall(
            r"^ +expr: (?:>-\n((?:  {10}.*\n)+)|(.*)\n)", text, re.M)
        assert len(found) == text.count("expr:"), file
        for long, short in found:
            yield file.name, " ".join((long or short).split())
    for file in sorted(CONTRIB.glob("grafana/*.json")):
        board = json.loads(file.read_text(encoding="utf-8"))
        for panel in board["panels"]:
            for target in panel.get("targets", []):
                yield file.name, target["expr"]
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                yield file.name, variable["query"]["query"].split("(")[1] \
                    .split(",")[0]


def check_contrib(families):
    """Every metric that a rule or a panel names is one that is there."""
    known = set(families)
    for name, family in families.items():
        if family.kind == "histogram":
            known |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    n = 0
    for file, expression in expressions():
        names = names_in(expression)
        n += len(names)
        assert names <= known, (file, expression, names - known)
    assert n > 40, n


def check_with_promtool(data):
    """Prometheus' own opinion, where it is installed."""
    promtool = shutil.which("promtool")
    if promtool is None:
        print("no promtool: the format was judged by this test alone")
        return
    rules = sorted(CONTRIB.glob("prometheus/*.yml"))
    subprocess.run([promtool, "check", "rules", *rules], check=True)
    got = subprocess.run([promtool, "check", "metrics"], input=data)
    assert got.returncode in (0, 3), got  # 3: taste


def main():
    test_what_it_says()
    test_many_sources()


if __name__ == "__main__":
    sys.exit(main())
