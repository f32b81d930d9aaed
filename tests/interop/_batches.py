"""What the publishers of these tests publish: batch i of a life, as values.

A batch is a list of events, an event a dict of the fields that are not at
their default, under their names on the wire and with the tag as "type".
Hashes are integers or bytes. What a reader received, in the same form, is
compared with it.
"""

LIFE = 1 << 40          # integer hashes of two lives never meet
SIZE = 4                # tokens a block


def block_hash(life, i):
    """The hash of block i: every third one is bytes, as of SHA-256."""
    number = life * LIFE + i
    if i % 3 == 2:
        return number.to_bytes(32, "big")
    # Some need all 64 bits.
    return (1 << 64) - 1 - number if i % 5 == 4 else number


def stored(life, i, tokens=SIZE):
    """Block i stored after block i - 1."""
    event = {
        "type": "BlockStored",
        "block_hashes": [block_hash(life, i)],
        "token_ids": [(i * 31 + k * 977) % 131072 for k in range(tokens)],
        "block_size": tokens,
        "medium": ("GPU", "CPU")[i % 2],
    }
    if i:
        event["parent_block_hash"] = block_hash(life, i - 1)
    if i % 4 == 1:
        event["lora_id"] = 7
        event["lora_name"] = "adapter-ä"
        event["extra_keys"] = [["adapter-ä", ["image", -3], "salt"]]
    if i % 4 == 2:
        event["group_idx"] = 1
        event["kv_cache_spec_kind"] = "sliding_window"
        event["kv_cache_spec_sliding_window"] = 64
    return event


def batch(life, i, tokens=SIZE):
    """The events of batch i."""
    events = [stored(life, i, tokens)]
    if i % 7 == 6:
        events.insert(0, {"type": "BlockRemoved", "medium": "GPU",
                          "block_hashes": [block_hash(life, i - 6)]})
    if i % 20 == 19:
        events.insert(0, {"type": "AllBlocksCleared"})
    return events


def struct(module, event):
    """An event as an object of vLLM's classes (or classes like them)."""
    kind = getattr(module, event["type"])
    values = {"lora_id": None, "medium": None, "lora_name": None,
              "parent_block_hash": None, **event}
    if "extra_keys" in values:
        values["extra_keys"] = [
            entry and [tuple(item) if isinstance(item, list) else item
                       for item in entry] for entry in values["extra_keys"]]
    return kind(**{name: values[name] for name in kind.__struct_fields__
                   if name in values})


def plain(value):
    """An object of vLLM's classes, or parts of one, as an event here."""
    if hasattr(value, "__struct_fields__"):
        event = {"type": type(value).__name__}
        for name in value.__struct_fields__:
            field = getattr(value, name)
            if field is not None:
                event[name] = plain(field)
        return event
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


# The slots of array events, in vLLM's order.
SLOTS = {
    "BlockStored": (
        "type", "block_hashes", "parent_block_hash", "token_ids",
        "block_size", "lora_id", "medium", "lora_name", "extra_keys",
        "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"),
    "BlockRemoved": ("type", "block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": ("type",),
}


def plain_wire(events):
    """Events as msgpack gave them, arrays or maps, as events here."""
    out = []
    for event in events:
        if isinstance(event, list):
            event = dict(zip(SLOTS[event[0]], event))
        out.append({name: value for name, value in event.items()
                    if value is not None})
    return out
