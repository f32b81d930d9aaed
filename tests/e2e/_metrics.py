"""A strict reader of Prometheus' text format 0.0.4: what it takes is what the
documentation of the format says, not what Prometheus forgives."""

import math
import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:{{((?:{LABEL},?)*)}})? ([^ ]+)")
TYPES = {"counter", "gauge", "histogram", "summary", "untyped"}
ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


class Family:
    def __init__(self, name, kind, text):
        self.name, self.kind, self.help = name, kind, text
        self.samples = {}  # (name, labels as sorted pairs): value


def number(text):
    special = {"+Inf": math.inf, "-Inf": -math.inf, "NaN": math.nan}
    if text in special:
        return special[text]
    assert re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", text), text
    return float(text)


def labels_of(text):
    """The pairs between the braces; nothing else may stand there."""
    pairs, at = [], 0
    while at < len(text):
        m = re.compile(LABEL).match(text, at)
        assert m, text[at:]
        value = re.sub(r'\\["\\n]', lambda e: ESCAPES[e[0]], m[2])
        pairs.append((m[1], value))
        at = m.end()
        if at < len(text):
            assert text[at] == "," and at + 1 < len(text), text
            at += 1
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names)), text
    assert not any(n.startswith("__") for n in names), text
    return tuple(sorted(pairs))


def parse(data):
    """{name: Family}; every sample belongs to the family before it."""
    text = data.decode("utf-8")
    assert text.endswith("\n") and "\r" not in text
    families, family, said = {}, None, None
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            name, _, words = line[7:].partition(" ")
            assert re.fullmatch(NAME, name) and words, line
            assert name not in families and said is None, line
            said = (name, words)
        elif line.startswith("# TYPE "):
            name, kind = line[7:].split(" ")
            assert said and name == said[0] and kind in TYPES, line
            family = families[name] = Family(name, kind, said[1])
            said = None
        else:
            assert family is not None and said is None, line
            m = SAMPLE.fullmatch(line)
            assert m, line
            add(family, m[1], labels_of(m[2] or ""), number(m[m.lastindex]))
    for family in families.values():
        check(family)
    return families


def add(family, name, labels, value):
    suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" \
        else ("",)
    assert name in {family.name + s for s in suffixes}, name
    assert (name, labels) not in family.samples, (name, labels)
    family.samples[name, labels] = value


def check(family):
    if family.kind == "counter":
        assert family.name.endswith("_total"), family.name
        assert all(v >= 0 for v in family.samples.values()), family.name
    elif family.kind == "histogram":
        check_histogram(family)
    else:
        assert not family.name.endswith("_total"), family.name


def check_histogram(family):
    series = {}
    for (name, labels), value in family.samples.items():
        if name.endswith("_bucket"):
            bound = dict(labels)["le"]
            rest = tuple(p for p in labels if p[0] != "le")
            series.setdefault(rest, []).append((number(bound), value))
    assert series, family.name
    for rest, buckets in series.items():
        assert buckets == sorted(buckets), family.name
        counts = [n for _, n in buckets]
        assert counts == sorted(counts), family.name
        assert buckets[-1][0] == math.inf, family.name
        assert counts[-1] == family.samples[family.name + "_count", rest]
        assert family.samples[family.name + "_sum", rest] >= 0


def grown(before, after):
    """No counter fell, and none of a series that is still there vanished."""
    for name, family in before.items():
        if family.kind not in ("counter", "histogram"):
            continue
        assert name in after, name
        for key, value in family.samples.items():
            if key in after[name].samples:
                assert after[name].samples[key] >= value, (key, value)


def value(families, name, **labels):
    """The sum of a metric's samples that have these labels."""
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    family = families[name] if name in families else families[base]
    found = [v for (n, pairs), v in family.samples.items()
             if n == name and labels.items() <= dict(pairs).items()]
    assert found, (name, labels)
    return sum(found)
