"""Canonical CBOR of the values that engines hash: another hand than ours."""

import struct


def cbor(value):
    def head(major, n):
        for code, form, limit in ((24, ">B", 1 << 8), (25, ">H", 1 << 16),
                                  (26, ">I", 1 << 32), (27, ">Q", 1 << 64)):
            if n < 24:
                return bytes([major << 5 | n])
            if n < limit:
                return bytes([major << 5 | code]) + struct.pack(form, n)
        raise ValueError(n)

    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return head(0, value) if value >= 0 else head(1, -1 - value)
    if isinstance(value, bytes):
        return head(2, len(value)) + value
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    return head(4, len(value)) + b"".join(map(cbor, value))
