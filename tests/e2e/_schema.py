"""The part of JSON Schema that docs/openapi.json uses: checked, and made into
values. A keyword that is not known here is an error, not something that holds.
"""

import json
import re

from _command import ROOT

FILE = ROOT / "docs" / "openapi.json"
DOCUMENT = json.loads(FILE.read_text(encoding="utf-8"))

ANNOTATIONS = {"description", "example", "contentMediaType"}
KEYWORDS = {
    "$ref", "type", "properties", "required", "additionalProperties", "items",
    "minItems", "maxItems", "enum", "const", "oneOf", "minimum", "maximum",
    "minLength", "maxLength", "pattern"}
TYPES = {
    "object": lambda v: isinstance(v, dict),
    "array": lambda v: isinstance(v, list),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float))
    and not isinstance(v, bool)}


def resolve(thing):
    """What a $ref stands for; anything else as it is."""
    while "$ref" in thing:
        path = thing["$ref"]
        assert path.startswith("#/"), path
        thing = DOCUMENT
        for part in path[2:].split("/"):
            thing = thing[part]
    return thing


def faults(value, schema, at="$"):
    """What is wrong with value, as texts."""
    schema = resolve(schema)
    unknown = set(schema) - KEYWORDS - ANNOTATIONS
    assert not unknown, unknown
    types = schema.get("type", list(TYPES))
    types = [types] if isinstance(types, str) else types
    if not any(TYPES[t](value) for t in types):
        return [f"{at}: {value!r:.80} is no {'/'.join(types)}"]
    found = []
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{at}: {value!r} is not one of {schema['enum']}")
    if "const" in schema and value != schema["const"]:
        found.append(f"{at}: {value!r} is not {schema['const']!r}")
    if "oneOf" in schema:
        fits = [not faults(value, one, at) for one in schema["oneOf"]]
        if sum(fits) != 1:
            found.append(f"{at}: {sum(fits)} of oneOf fit {value!r:.200}")
    if isinstance(value, str):
        found += text_faults(value, schema, at)
    elif TYPES["number"](value):
        if not (schema.get("minimum", value) <= value
                <= schema.get("maximum", value)):
            found.append(f"{at}: {value} is out of range")
    elif isinstance(value, list):
        found += list_faults(value, schema, at)
    elif isinstance(value, dict):
        found += object_faults(value, schema, at)
    return found


def text_faults(value, schema, at):
    found = []
    if not (schema.get("minLength", 0) <= len(value)
            <= schema.get("maxLength", len(value))):
        found.append(f"{at}: length {len(value)}")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        found.append(f"{at}: {value!r} is not {schema['pattern']}")
    return found


def list_faults(value, schema, at):
    found = []
    if not (schema.get("minItems", 0) <= len(value)
            <= schema.get("maxItems", len(value))):
        found.append(f"{at}: {len(value)} items")
    for i, item in enumerate(value):
        if "items" in schema:
            found += faults(item, schema["items"], f"{at}[{i}]")
    return found


def object_faults(value, schema, at):
    found = [f"{at}: {name} is missing"
             for name in schema.get("required", []) if name not in value]
    known = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    for name, item in value.items():
        if name in known:
            found += faults(item, known[name], f"{at}.{name}")
        elif others is False:
            found.append(f"{at}: {name} is not in the document")
        elif others is not True:
            found += faults(item, others, f"{at}.{name}")
    return found


def check(value, schema, what):
    found = faults(value, schema)
    assert not found, (what, found[:5])


# ---- values ----

def samples(schema, rng):
    """Some values that are valid, the plainest first."""
    schema = resolve(schema)
    if "enum" in schema:
        return list(schema["enum"])
    if "oneOf" in schema and "type" not in schema:
        return [v for one in schema["oneOf"] for v in samples(one, rng)]
    types = schema["type"]
    types = [types] if isinstance(types, str) else types
    return [v for t in types for v in SAMPLES[t](schema, rng)]


def some_numbers(schema, rng):
    low = schema.get("minimum", 0)
    high = schema.get("maximum", low + 100)
    return [low, high, rng.randint(low, high)]


def some_texts(schema, rng):
    if "pattern" in schema:
        known = ["gpu", "DISK", "0", "17270480062156288726", "-1", "0xaB",
                 "ab" * 32, "00ff"]
        return [t for t in known if re.search(schema["pattern"], t)]
    low = schema.get("minLength", 0)
    texts = ["", "m", 'a "quoted" \\ text\n', "\u00e9\u4e2d\U0001f600",
             "x" * min(schema.get("maxLength", 300), 300)]
    return [t for t in texts if len(t) >= low]


def some_lists(schema, rng):
    one = samples(schema["items"], rng)
    low = schema.get("minItems", 0)
    high = min(schema.get("maxItems", 40), 40)
    lists = [[], one[:1], [rng.choice(one) for _ in range(high)]]
    return [v for v in lists if len(v) >= low]


def some_objects(schema, rng):
    """Only what is required; then each further field alone; then many."""
    fields = schema.get("properties", {})
    bases = [list(schema.get("required", []))]
    if "oneOf" in schema:
        bases = [bases[0] + one["required"] for one in schema["oneOf"]]
    either = {n for one in schema.get("oneOf", []) for n in one["required"]}
    objects = []
    for base in bases:
        plain = {n: samples(fields[n], rng)[-1] for n in base}
        for name in base:
            objects += [{**plain, name: v} for v in samples(fields[name], rng)]
        others = [n for n in fields if n not in base and n not in either]
        for name in others:
            objects += [{**plain, name: v} for v in samples(fields[name], rng)]
        objects.append(plain)
        for _ in range(10):
            some = [n for n in others if rng.random() < 0.5]
            objects.append({**plain, **{
                n: rng.choice(samples(fields[n], rng)) for n in some}})
    return objects


SAMPLES = {
    "object": some_objects, "array": some_lists, "string": some_texts,
    "boolean": lambda schema, rng: [False, True],
    "null": lambda schema, rng: [None],
    "integer": some_numbers, "number": some_numbers}

STRANGE = [None, True, 7, -1, 1.5, 2**70, "", "strange", [], [[]], {}, [None],
           {"a": 1}, [{}], ["x", 1], "\x00"]


def spoilt(value, schema):
    """Values like value that are not valid; value is an object."""
    fields = schema.get("properties", {})
    for name in value:
        less = dict(value)
        del less[name]
        yield less
    for name in fields:
        for strange in STRANGE:
            yield {**value, name: strange}
        for more in near(resolve(fields[name])):
            yield {**value, name: more}
    yield {**value, "no such field": 1}


def near(schema):
    """Values just outside of a schema."""
    if "minimum" in schema:
        yield schema["minimum"] - 1
    if "maximum" in schema:
        yield schema["maximum"] + 1
    if "maxLength" in schema:
        yield "x" * (schema["maxLength"] + 1)
    if "maxItems" in schema and schema["maxItems"] < 1000:
        items = samples(schema["items"], None_rng())
        yield items[:1] * (schema["maxItems"] + 1)


class None_rng:
    """Always the first: where chance has no place."""

    @staticmethod
    def randint(low, high):
        return low

    @staticmethod
    def choice(items):
        return items[0]

    @staticmethod
    def random():
        return 0.0
