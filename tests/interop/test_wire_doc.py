"""The bytes that docs/WIRE.md shows are what it says they are.

Each block of hex is followed by a block of JSON. msgspec decodes the one to
the other ({"bytes": hex} stands for a bin), and the codec writes it again, in
the layout that the hex block names, to the same bytes.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

try:
    import msgspec
except ImportError:
    print("skipped: msgspec is missing; scripts/venv.sh installs it")
    sys.exit(77)

ROOT = pathlib.Path(os.environ.get("KVEVENTS_SOURCE_DIR",
                                   pathlib.Path(__file__).parents[2]))
TOOL = os.environ.get("KVEVENTS_CODEC_TOOL") or str(
    pathlib.Path(os.environ.get("KVEVENTS_BUILD_DIR",
                                ROOT / "build" / "release"))
    / "tests" / "kve_codec_tool")


def plain(value):
    """A decoded value as the document writes it."""
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def written_again(layout, payload):
    done = subprocess.run([TOOL, layout], check=True, capture_output=True,
                          input=len(payload).to_bytes(4, "little") + payload)
    return done.stdout[4:]


def main():
    page = (ROOT / "docs" / "WIRE.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```hex (\S+)\n(.*?)^```\n\n```json\n(.*?)^```$",
                          page, re.M | re.S)
    failed = 0
    for number, (layout, text, value) in enumerate(examples, 1):
        payload = bytes.fromhex("".join(text.split()))
        right = (plain(msgspec.msgpack.decode(payload)) == json.loads(value)
                 and written_again(layout, payload) == payload)
        failed += not right
        print("ok   " if right else "FAIL ",
              f"example {number}, layout {layout}, {len(payload)} bytes")
    if len(examples) != page.count("```hex"):
        print("FAIL  a hex block has no JSON behind it")
        failed += 1
    print(f"{len(examples)} examples, {failed} failed")
    sys.exit(1 if failed or not examples else 0)


if __name__ == "__main__":
    main()
