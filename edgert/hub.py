"""Files on the Hugging Face hub (or on HF_ENDPOINT): what the hub says about them, and resumable downloads by Range."""

import contextlib
import os
import re
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin, urlsplit

from edgert.download import Expected, Progress, check_disk, human_bytes, put_in_place, sha256_file
from edgert.errors import DownloadError, ModelNotFoundError

if TYPE_CHECKING:
    import httpx

DEFAULT_ENDPOINT = "https://huggingface.co"
RETRY_WAITS = (1.0, 2.0, 4.0, 8.0)  # seconds before each further try; a try that brought bytes starts the row again
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]*")
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


class Interrupted(Exception):
    """The connection failed in a way that trying again may cure."""


@dataclass(frozen=True, slots=True)
class HubRef:
    """One file on the hub; every part is checked, so the parts are safe as names of local folders."""

    owner: str
    repo: str
    file: str
    revision: str = "main"

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return f"hf:{self.owner}/{self.repo}/{self.file}{revision}"

    def url(self, revision: str) -> str:
        base = os.environ.get("HF_ENDPOINT", "").rstrip("/") or DEFAULT_ENDPOINT
        return f"{base}/{self.owner}/{self.repo}/resolve/{quote(revision, safe='')}/{quote(self.file)}"

    def shards(self) -> list["HubRef"]:
        """All files of a model that is cut in several; just this one otherwise."""
        match = _SHARD.fullmatch(self.file)
        if match is None:
            return [self]
        stem, count = match[1], int(match[3])
        if not 1 <= int(match[2]) <= count <= 1000:
            raise ModelNotFoundError(f"{self}: shard {match[2]} of {match[3]} does not exist")
        names = (f"{stem}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1))
        return [HubRef(self.owner, self.repo, name, self.revision) for name in names]


@dataclass(frozen=True, slots=True)
class HubFile:
    """What the hub says about a file: the address at a fixed commit, its SHA-256 and size in bytes."""

    url: str
    sha256: str
    bytes: int


def parse_ref(text: str) -> HubRef:
    """`hf:OWNER/REPO/FILE.gguf[@REVISION]`, or ModelNotFoundError saying what is wrong with it."""
    path, _, revision = text.removeprefix("hf:").partition("@")
    names = path.split("/")
    if len(names) < 3 or not path.endswith(".gguf"):
        raise ModelNotFoundError(f"{text!r} names no file; write hf:OWNER/REPO/FILE.gguf")
    bad = [name for name in [*names, *revision.split("/")] if name and not _NAME.fullmatch(name)]
    if bad or "" in names:
        raise ModelNotFoundError(f"{text!r}: {(bad or [''])[0]!r} cannot be part of a hub name")
    return HubRef(names[0], names[1], str(PurePosixPath(*names[2:])), revision or "main")


def fetch_hub(ref: HubRef, folder: Path, target: Path, expected: Expected, progress: Progress) -> None:
    """Download one file into `folder` (continuing what is there), verify its SHA-256 and put it in place."""
    import httpx

    try:
        client = httpx.Client(timeout=httpx.Timeout(60, connect=15), verify=_ssl_context(), headers=_headers())
    except (ImportError, ValueError, OSError) as error:
        raise DownloadError(f"the proxy or certificate settings of this environment do not work: {error}") from error
    with client:
        entry = _stat(client, ref)
        if expected.sha256 is not None and entry.sha256 != expected.sha256:
            raise DownloadError(f"{ref}: the hub has sha256 {entry.sha256}, expected {expected.sha256}; not downloaded")
        part = folder / f"{entry.sha256}.part"  # named by content: what is there belongs to this very file
        have = part.stat().st_size if part.exists() else 0
        check_disk(folder, max(0, entry.bytes - have))
        _download(client, ref, entry, part, progress)
    found = sha256_file(part, progress, f"checking {ref.file}")
    if found != entry.sha256:
        part.unlink()
        raise DownloadError(f"{ref}: sha256 is {found}, expected {entry.sha256}; discarded, pull it again")
    put_in_place(part, target, str(ref), found)
    with contextlib.suppress(OSError):  # still holds the part of another revision
        folder.rmdir()


def _headers() -> dict[str, str]:
    headers = {"User-Agent": "edgert", "Accept-Encoding": "identity"}
    token = os.environ.get("HF_TOKEN", "").strip()
    return headers | {"Authorization": f"Bearer {token}"} if token else headers


def _ssl_context() -> ssl.SSLContext:
    """httpx's certificates, the system's, and those that the user's environment names (company proxies)."""
    import httpx

    context = httpx.create_ssl_context()
    context.load_default_certs()
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        if os.path.isfile(path := os.environ.get(variable, "")):
            context.load_verify_locations(path)
    return context


def _stat(client: "httpx.Client", ref: HubRef) -> HubFile:
    """Ask for the file's SHA-256 and size without following the redirect to the storage, which does not say them."""
    url = ref.url(ref.revision)
    for _ in range(5):
        response = _retrying_head(client, ref, url)
        location = response.headers.get("Location", "")
        if response.is_redirect and not urlsplit(location).netloc:
            url = urljoin(url, location)  # the repository was renamed
            continue
        return _read_head(ref, response)
    raise DownloadError(f"{ref}: the hub redirects in a circle")


def _read_head(ref: HubRef, response: "httpx.Response") -> HubFile:
    headers = response.headers
    etag = (headers.get("X-Linked-Etag") or headers.get("ETag") or "").removeprefix("W/").strip('"').lower()
    size = headers.get("X-Linked-Size") or headers.get("Content-Length") or ""
    if not re.fullmatch(r"[0-9a-f]{64}", etag) or not size.isdecimal():
        raise DownloadError(f"{ref}: the hub names no sha256 and size to check the file against; not downloaded")
    commit = headers.get("X-Repo-Commit", "")
    pinned = commit if re.fullmatch(r"[0-9a-f]{40}", commit) else ref.revision
    return HubFile(ref.url(pinned), etag, int(size))


def _retrying_head(client: "httpx.Client", ref: HubRef, url: str) -> "httpx.Response":
    for wait in [*RETRY_WAITS[:3], None]:
        try:
            with _connection_errors():
                response = client.head(url)
                _check_status(ref, response)
                return response
        except Interrupted as error:
            if wait is None:
                raise DownloadError(f"{ref}: {error}; check the connection and pull it again") from error
            time.sleep(wait)
    raise AssertionError("unreachable")


@contextlib.contextmanager
def _connection_errors() -> Iterator[None]:
    import httpx

    try:
        yield
    except httpx.InvalidURL as error:
        raise DownloadError(f"HF_ENDPOINT {os.environ.get('HF_ENDPOINT', '')!r} is no address: {error}") from error
    except httpx.UnsupportedProtocol as error:
        raise DownloadError(f"HF_ENDPOINT {os.environ.get('HF_ENDPOINT', '')!r} is no http(s) address") from error
    except httpx.RequestError as error:
        raise Interrupted(f"no connection ({str(error) or type(error).__name__})") from error


def _check_status(ref: HubRef, response: "httpx.Response") -> None:
    status = response.status_code
    if status in (408, 425, 429) or status >= 500:
        raise Interrupted(f"the hub answers {status} {response.reason_phrase}")
    if status == 404:
        raise ModelNotFoundError(f"{ref}: there is no such file on the hub ({response.url.host})")
    if status in (401, 403):
        raise DownloadError(
            f"{ref}: private, gated or missing ({status}); accept its licence on the hub's page and set HF_TOKEN"
        )
    if status >= 400 and status != 416:
        raise DownloadError(f"{ref}: the hub answers {status} {response.reason_phrase}")


def _download(client: "httpx.Client", ref: HubRef, entry: HubFile, part: Path, progress: Progress) -> None:
    """Fill `part` up to `entry.bytes`, resuming what is there and after interruptions."""
    waits = list(RETRY_WAITS)
    part.touch()
    if part.stat().st_size > entry.bytes:
        part.write_bytes(b"")
    while (have := part.stat().st_size) < entry.bytes:
        try:
            with _connection_errors():
                _continue(client, ref, entry, part, progress)
        except Interrupted as error:
            if part.stat().st_size > have:
                waits = list(RETRY_WAITS)
            if not waits:
                kept = human_bytes(part.stat().st_size)
                raise DownloadError(f"{ref}: {error}; {kept} are kept, pull it again to continue") from error
            time.sleep(waits.pop(0))


def _continue(client: "httpx.Client", ref: HubRef, entry: HubFile, part: Path, progress: Progress) -> None:
    """One request for the rest of the file, appended to `part`; with a server that knows no Range it starts over."""
    have = part.stat().st_size
    headers = {"Range": f"bytes={have}-"} if have else {}
    with client.stream("GET", entry.url, headers=headers, follow_redirects=True) as response:
        _check_status(ref, response)
        start = response.headers.get("Content-Range", "")
        continues = response.status_code == 206 and start.startswith(f"bytes {have}-")
        if not continues and response.status_code != 200:
            raise DownloadError(f"{ref}: the hub answers {response.status_code} to a request for bytes from {have}")
        have = have if continues else 0
        with part.open("r+b") as file:
            file.truncate(have)
            file.seek(have)
            for piece in response.iter_raw():
                have += len(piece)
                if have > entry.bytes:
                    raise DownloadError(f"{ref}: the hub sends more than the {entry.bytes} bytes it announced")
                file.write(piece)
                progress(f"downloading {ref.file}", have, entry.bytes)
    if have < entry.bytes:
        raise Interrupted("the connection closed early")
