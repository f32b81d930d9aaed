#!/usr/bin/env python3
"""The questions of Mooncake's JSON dialect, in the order of a data file, beside
engines that say what belongs to them; each answer is compared."""

import sys

from _command import main
from _dialect import Engine, Service, lines, play


def settled(path, value):
    """A JSON answer without what nobody promised: an order."""
    if path == "/global_view":
        value["model_contexts"].sort(key=lambda one: one["tenant_id"])
        value["hashmap"].sort(key=len)
    return value


def test_each_answer_is_as_the_document_says():
    with Service() as service, Engine() as e1r0, Engine() as e1r1, \
            Engine() as e2:
        engines = {"e1r0": e1r0, "e1r1": e1r1, "e2": e2}
        names = {name: engine.endpoint for name, engine in engines.items()}
        workers = {"e1r0": ("e1", 0), "e1r1": ("e1", 1), "e2": ("7", 0)}
        wrong = play(service, lines("mooncake_examples.jsonl"), engines,
                     workers, names, settled)
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__":
    main(sys.modules[__name__])
