"""libkvevents through ctypes: the calls of a publisher.

Structures and enums are read out of the public headers when a test starts,
so that they are never other than the library's.
"""

import ctypes
import functools
import os
import pathlib
import re

import _harness

ROOT = pathlib.Path(os.environ.get("KVEVENTS_SOURCE_DIR",
                                   pathlib.Path(__file__).parents[2]))
HEADERS = ("status.h", "event.h", "codec.h", "counters.h", "context.h",
           "publisher.h")

NONE = (1 << 32) - 1    # KVE_NONE

SCALARS = {
    "size_t": ctypes.c_size_t, "bool": ctypes.c_bool, "int": ctypes.c_int,
    "double": ctypes.c_double, "char": ctypes.c_char,
    "uint8_t": ctypes.c_uint8, "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64, "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "kve_status": ctypes.c_int,
}


def _text():
    text = "\n".join((ROOT / "include" / "kvevents" / name).read_text()
                     for name in HEADERS)
    return re.sub(r"/\*.*?\*/", " ", text, flags=re.S).replace("\\\n", " ")


class _Headers:
    """The part of C that the headers use for values."""

    def __init__(self):
        self.text = _text()
        self.structs = {}
        self.constants = {}
        for name, body in re.findall(r"^struct (\w+) \{(.*?)^\};", self.text,
                                     re.M | re.S):
            self.structs[name] = self._struct(name, body)
        self._read_enums()

    def _type(self, words, stars):
        """The ctypes type of a declaration's words and stars."""
        words = [word for word in words if word != "const"]
        if stars:
            return ctypes.c_char_p if words == ["char"] and stars == 1 \
                else ctypes.c_void_p
        if words[0] == "struct":
            return self.structs[words[1]]
        if words[0] == "enum":
            return ctypes.c_uint
        return SCALARS[words[0]]

    def _fields(self, body):
        for declaration in filter(None, map(str.strip, body.split(";"))):
            if "(*" in declaration:
                name = re.search(r"\(\*(\w+)\)", declaration)[1]
                yield name, ctypes.c_void_p
                continue
            found = re.match(r"([\w\s]*?)\s*(\**)\s*(\w+)(?:\[(\d+)\])?$",
                             declaration)
            kind = self._type(found[1].split(), len(found[2]))
            yield found[3], kind * int(found[4]) if found[4] else kind

    def _struct(self, name, body):
        fields, unnamed = [], []
        union = re.search(r"union \{(.*?)\}\s*;", body, re.S)
        before, after = body, ""
        if union:
            before, after = body[:union.start()], body[union.end():]
        fields += self._fields(before)
        if union:
            inner = type("union", (ctypes.Union,),
                         {"_fields_": list(self._fields(union[1]))})
            fields.append(("u", inner))
            unnamed = ["u"]
        fields += self._fields(after)
        return type(name, (ctypes.Structure,),
                    {"_anonymous_": unnamed, "_fields_": fields})

    def _read_enums(self):
        """KVE_OK, KVE_LAYOUT_MAP ...: plain ones, and those of maps."""
        for body in re.findall(r"enum \w+ \{([^#]*?)\}", self.text):
            for name, number in re.findall(r"(KVE_\w+) = (\d+)", body):
                self.constants[name] = int(number)
        maps = dict(re.findall(r"#define (KVE_\w+_MAP)\(X\)(.*)", self.text))
        for prefix, number, body in re.findall(
                r"#define X\(name[^)]*\) (KVE_\w*?)##name = ([^,\n]*),"
                r"(.*?)#undef X", self.text, re.S):
            for used in re.findall(r"(KVE_\w+_MAP)\(X\)", body):
                for name, value in re.findall(r"X\((\w+),\s*(\d+)",
                                              maps[used]):
                    self.constants[prefix + name] = \
                        1 << int(value) if "<<" in number else int(value)


@functools.cache
def headers():
    return _Headers()


def struct(name, **values):
    """A structure of the headers; struct_size is set where there is one."""
    kind = headers().structs[name]
    if any(field == "struct_size" for field, *_ in kind._fields_):
        values.setdefault("struct_size", ctypes.sizeof(kind))
    return kind(**values)


def constant(name):
    return headers().constants[name]


@functools.cache
def library():
    build = pathlib.Path(os.environ.get("KVEVENTS_BUILD_DIR",
                                        ROOT / "build" / "release"))
    found = sorted(build.rglob("libkvevents.so"))
    if not found:
        _harness.skip("no libkvevents.so was built")
    lib = ctypes.CDLL(str(found[0]))
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, *arguments in (
            ("kve_pub_create", ctypes.c_int, pointer, pointer, pointer,
             pointer),
            ("kve_pub_create_null", ctypes.c_int, pointer, pointer),
            ("kve_pub_publish", ctypes.c_int, pointer, pointer, pointer,
             pointer),
            ("kve_pub_publish_payload", ctypes.c_int, pointer, text,
             ctypes.c_size_t, pointer, pointer),
            ("kve_pub_flush", ctypes.c_int, pointer, ctypes.c_int, pointer),
            ("kve_pub_shutdown", ctypes.c_int, pointer, ctypes.c_int, pointer,
             pointer),
            ("kve_pub_destroy", None, pointer),
            ("kve_pub_endpoint", text, pointer),
            ("kve_pub_replay_endpoint", text, pointer),
            ("kve_pub_snapshot_endpoint", text, pointer),
            ("kve_pub_publisher_id", pointer, pointer),
            ("kve_pub_next_number", ctypes.c_uint64, pointer),
            ("kve_pub_counter", ctypes.c_uint64, pointer, ctypes.c_uint),
            ("kve_endpoint_of_rank", ctypes.c_int, text, ctypes.c_uint32,
             pointer, ctypes.c_size_t, pointer)):
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class Error(Exception):
    def __init__(self, status, error):
        super().__init__(error.detail.decode())
        self.status = status


def _call(function, *arguments):
    error = struct("kve_error")
    status = function(*arguments, ctypes.byref(error))
    if status:
        raise Error(status, error)


def endpoint_of_rank(endpoint, rank):
    text = ctypes.create_string_buffer(256)
    _call(library().kve_endpoint_of_rank, endpoint.encode(), rank, text, 256)
    return text.value.decode()


class Events:
    """Events as _batches has them, as an array of struct kve_event."""

    def __init__(self, events):
        self.keep = []
        kind = headers().structs["kve_event"]
        self.array = (kind * max(1, len(events)))()
        self.count = len(events)
        self.size = ctypes.sizeof(kind)
        for target, event in zip(self.array, events):
            self._fill(target, event)

    def _pointer(self, thing):
        self.keep.append(thing)
        return ctypes.cast(thing, ctypes.c_void_p).value

    def _span(self, kind, data):
        return struct(kind, data=self._pointer(ctypes.create_string_buffer(
            data, len(data) or 1)), len=len(data))

    def _hash(self, value):
        if isinstance(value, int):
            return struct("kve_hash", integer=value & (1 << 64) - 1)
        return struct("kve_hash", bytes=self._pointer(
            ctypes.create_string_buffer(value, len(value) or 1)),
            len=len(value))

    def _fill(self, target, event):
        import msgspec
        numbers = {"lora_id": "lora_id", "group_idx": "group_idx",
                   "kv_cache_spec_sliding_window": "sliding_window"}
        texts = {"medium": "medium", "lora_name": "lora_name",
                 "kv_cache_spec_kind": "spec_kind", "locality": "locality",
                 "ownership": "ownership", "session_id": "session_id"}
        raws = ("extra_keys", "lookahead_token_ids")
        for name, value in event.items():
            if name == "type":
                target.type = constant({
                    "BlockStored": "KVE_EVENT_STORED",
                    "BlockRemoved": "KVE_EVENT_REMOVED",
                    "AllBlocksCleared": "KVE_EVENT_CLEARED"}[value])
            elif name == "block_hashes":
                kind = headers().structs["kve_hash"] * len(value)
                target.hashes = self._pointer(kind(*map(self._hash, value)))
                target.n_hashes = len(value)
            elif name == "parent_block_hash":
                target.has_parent = True
                target.parent = self._hash(value)
            elif name == "token_ids":
                kind = ctypes.c_uint32 * len(value)
                target.tokens = self._pointer(kind(*value))
                target.n_tokens = len(value)
            elif name == "block_size":
                target.block_size = value
            elif name in numbers:
                setattr(target, numbers[name],
                        struct("kve_int", value=value, set=True))
            elif name in texts:
                setattr(target, texts[name],
                        self._span("kve_str", value.encode()))
            elif name in raws:
                setattr(target, name, self._span(
                    "kve_span", msgspec.msgpack.encode(value)))
            else:
                raise KeyError(name)


class Publisher:
    """A kve_publisher, with the names of vLLM's class where it has them."""

    def __init__(self, endpoint="tcp://127.0.0.1:0", null=False, **options):
        self.handle = ctypes.c_void_p()
        if null:
            _call(library().kve_pub_create_null, ctypes.byref(self.handle))
            return
        options = {name: value.encode() if isinstance(value, str) else value
                   for name, value in options.items()}
        if "rank" in options:
            options["rank"] = struct("kve_int", value=options["rank"],
                                     set=True)
        self.options = struct("kve_pub_opts", endpoint=endpoint.encode(),
                              **options)
        _call(library().kve_pub_create, None, ctypes.byref(self.options),
              ctypes.byref(self.handle))

    endpoint = property(
        lambda self: library().kve_pub_endpoint(self.handle).decode())
    replay_endpoint = property(
        lambda self: library().kve_pub_replay_endpoint(self.handle).decode())
    snapshot_endpoint = property(
        lambda self: library().kve_pub_snapshot_endpoint(self.handle).decode())
    publisher_id = property(lambda self: ctypes.string_at(
        library().kve_pub_publisher_id(self.handle), 16))
    next_number = property(
        lambda self: library().kve_pub_next_number(self.handle))

    def publish(self, events, ts=0.0):
        """Publish events (a list, or Events made before); the number."""
        made = events if isinstance(events, Events) else Events(events)
        view = struct("kve_batch_view", ts=ts, n_events=made.count,
                      event_size=made.size,
                      events=ctypes.cast(made.array, ctypes.c_void_p).value)
        number = ctypes.c_uint64()
        _call(library().kve_pub_publish, self.handle, ctypes.byref(view),
              ctypes.byref(number))
        return number.value

    def publish_payload(self, payload):
        number = ctypes.c_uint64()
        _call(library().kve_pub_publish_payload, self.handle, payload,
              len(payload), ctypes.byref(number))
        return number.value

    def flush(self, timeout_ms=10_000):
        _call(library().kve_pub_flush, self.handle, timeout_ms)

    def shutdown(self, timeout_ms=-1):
        lost = ctypes.c_uint64()
        _call(library().kve_pub_shutdown, self.handle, timeout_ms,
              ctypes.byref(lost))
        return lost.value

    def counter(self, name):
        return library().kve_pub_counter(
            self.handle, constant("KVE_COUNTER_" + name))

    def close(self):
        library().kve_pub_destroy(self.handle)
        self.handle = ctypes.c_void_p()
