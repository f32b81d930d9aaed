#!/usr/bin/env python3
"""Help, man page and completions name every option, and are well formed."""

import re
import shutil
import subprocess
import sys
import tempfile

from _command import BIN, BUILD, main, run

COMMANDS = ["watch", "publish", "index", "hash", "serve", "query", "sources",
            "help", "completion"]


def options(command):
    """Long options in the help of a command, --help among them."""
    done = run(command, "--help")
    assert done.returncode == 0 and done.stderr == "", done
    return re.findall(r"^  (?:-\w,|   ) --([a-z-]+)", done.stdout, re.M)


def test_help():
    overview = run("help").stdout
    assert run("--help").stdout == overview
    for command in COMMANDS:
        assert f"  {command} " in overview, command
        text = run("help", command).stdout
        assert text == run(command, "-h").stdout
        assert text.startswith(f"Usage: kvevents {command} "), text
        wide = [line for line in text.splitlines() if len(line) > 79]
        assert not wide, wide
    for command in COMMANDS[:-2]:
        assert len(options(command)) > 11, command


def test_version():
    text = run("--version").stdout
    assert re.fullmatch(r"kvevents \d+\.\d+\.\d+ \(ZeroMQ 4\.\d+\.\d+\)\n",
                        text), text


def test_defaults_are_what_is_parsed():
    """The default that the help names is a value the parser takes."""
    for command in "watch", "publish", "serve", "query":
        text = re.sub(r"\n {27}", " ", run(command, "--help").stdout)
        found = re.findall(r"--([a-z-]+) [A-Z]+ .*\(default (\S+)\)$", text,
                           re.M)
        assert len(found) >= 5, found
        for option, default in found:
            done = run(command, f"--{option}={default}", "--help")
            assert done.returncode == 0, f"--{option}={default}: {done}"


def test_man_page():
    page = run("help", "--man").stdout
    plain = page.replace("\\-", "-")
    for command in COMMANDS:
        assert f".SS kvevents {command}" in plain
        for option in options(command):
            if option != "help":
                assert f"--{option}" in plain, option
    written = (BUILD / "written/man/kvevents.1").read_text()
    assert written == page, "the page of the build is another one"
    if shutil.which("mandoc"):
        done = subprocess.run(["mandoc", "-Tlint"], input=page, text=True,
                              capture_output=True)
        assert done.stdout + done.stderr == "", done.stdout


BASH = """
source /dev/stdin <<<"$(%s completion bash)"
complete_words() {
    COMP_WORDS=("$@")
    COMP_CWORD=$(($# - 1))
    _kvevents
    printf '%%s ' "${COMPREPLY[@]}"
    echo
}
complete_words kvevents wa
complete_words kvevents watch --form
complete_words kvevents watch --format j
complete_words kvevents watch -f ''
complete_words kvevents completion z
complete_words kvevents watch --topic ''
complete_words kvevents watch --format =
complete_words kvevents watch --format = j
complete_words kvevents publish --curve-keys /etc/hos
"""


def test_bash_completion():
    done = subprocess.run(["bash", "-c", BASH % BIN], capture_output=True,
                          text=True)
    assert done.returncode == 0 and done.stderr == "", done
    got = [line.split() for line in done.stdout.splitlines()]
    assert got[:5] == [["watch"], ["--format"], ["json"],
                       ["text", "json", "raw"], ["zsh"]], got
    assert got[5] == [], got
    assert got[6] == ["text", "json", "raw"] and got[7] == ["json"], got
    assert "/etc/hosts" in got[8], got


def test_fish_quotes():
    """Every line ends outside of quotes, as fish reads them."""
    for line in run("completion", "fish").stdout.splitlines():
        left = re.sub(r"'(?:[^'\\]|\\.)*'", "", line)
        assert "'" not in left, line


def test_other_shells():
    for shell, check in ("zsh", ["-n"]), ("fish", ["--no-execute"]):
        script = run("completion", shell).stdout
        for command in COMMANDS:
            for option in options(command):
                assert re.search(rf"(-l |--){option}\b", script), option
        if shutil.which(shell):
            with tempfile.NamedTemporaryFile("w") as file:
                file.write(script)
                file.flush()
                done = subprocess.run([shell, *check, file.name],
                                      capture_output=True, text=True)
            assert done.returncode == 0 and done.stderr == "", done


if __name__ == "__main__":
    main(sys.modules[__name__])
