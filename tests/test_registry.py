"""Names, paths and hub files to local files: downloads that resume, verify, and never leave half a file."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import multiprocessing
import shutil
import zipfile
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

import hub_server
from edgert import download, hub, registry
from edgert.errors import DownloadError, ModelNotFoundError

CONTENT = bytes(range(256)) * 2048  # 512 KiB
REF = "hf:owner/repo/model-q4.gguf"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty EDGERT_HOME, and no waiting between tries."""
    monkeypatch.setenv("EDGERT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(hub, "RETRY_WAITS", (0.0, 0.0, 0.0))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return tmp_path / "home"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[hub_server.Hub]:
    """A hub with one model, at HF_ENDPOINT."""
    with hub_server.serve() as served:
        served.files["owner/repo/model-q4.gguf"] = CONTENT
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield served


def final_names(home: Path) -> list[str]:
    """Files under a final name: everything that is not in the partial folder."""
    return sorted(p.name for p in home.rglob("*.gguf") if ".partial" not in p.parts and p.is_file())


# ---- models.toml ---------------------------------------------------------------------------------------------------


def test_models_toml_is_complete() -> None:
    """Every row can be read, its sources parse, and the default is in it."""
    assert registry.default_model() in registry.known()
    for name, entry in registry.known().items():
        assert name == name.lower()
        assert entry.bytes > 0
        assert entry.context > 0
        assert entry.licence
        for source in entry.sources:
            if source.startswith("pypi:"):
                assert download.parse_wheel_source(source).member
                assert entry.sha256 is not None
                assert len(entry.sha256) == 64
            else:
                assert hub.parse_ref(source).file.endswith(".gguf")


def test_unknown_name_lists_close_ones(home: Path) -> None:
    """A typing mistake is met with the names that come close."""
    with pytest.raises(ModelNotFoundError, match="smollm2-135m") as caught:
        registry.resolve("smollm-135")
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelNotFoundError, match="edgert list"):
        registry.resolve("zzzz")


def test_paths(tmp_path: Path, home: Path) -> None:
    """A file is itself; a folder or a missing file is an error that says so."""
    path = tmp_path / "a.gguf"
    path.write_bytes(b"GGUF")
    assert registry.resolve(path) == path
    assert registry.resolve(str(path)) == path
    with pytest.raises(ModelNotFoundError, match=r"is a folder; it holds a\.gguf"):
        registry.resolve(tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"no file .*missing\.gguf"):
        registry.resolve(tmp_path / "missing.gguf")


@pytest.mark.parametrize(
    "text",
    ["hf:a/b", "hf:a/b/c", "hf:../b/c.gguf", "hf:a/b/../c.gguf", "hf:a//c.gguf", "hf:a/b/.c.gguf", "hf:a/b/c:d.gguf"],
)
def test_hub_names_are_checked(text: str, home: Path) -> None:
    """A hub name becomes a folder name, so nothing in it may lead elsewhere."""
    with pytest.raises(ModelNotFoundError, match="hf:"):
        registry.resolve(text)


# ---- the hub -------------------------------------------------------------------------------------------------------


def test_hub_download(home: Path, server: hub_server.Hub) -> None:
    """A file arrives at the commit that the hub named, is verified, listed, and found again offline."""
    seen: list[tuple[int, int | None]] = []
    path = registry.resolve(REF, lambda what, done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert path == home / "models" / "hf" / "owner" / "repo" / "model-q4.gguf"
    assert (len(CONTENT), len(CONTENT)) in seen
    assert any(hub_server.COMMIT in where for _, where, _ in server.log)
    asked = len(server.log)
    assert registry.resolve(REF) == path
    assert len(server.log) == asked, "a file that is here needs no network"
    assert registry.verify(REF) == hashlib.sha256(CONTENT).hexdigest()
    assert [row.name for row in registry.list_models() if row.path] == [REF]


def test_interrupted_download_resumes(home: Path, server: hub_server.Hub) -> None:
    """After the connection closes the rest is asked for by Range, within one call."""
    server.cut_after = [100_000, 50_000]
    assert registry.pull(REF).read_bytes() == CONTENT
    starts = [int(wanted.removeprefix("bytes=").rstrip("-") or 0) for wanted in server.ranges()]
    assert starts == [0, 100_000, 150_000]


def test_later_process_resumes(home: Path, server: hub_server.Hub) -> None:
    """A download that failed for good keeps its part, leaves no final name, and goes on in the next call."""
    server.cut_after = [100_000, 0, 0, 0, 0]
    with pytest.raises(DownloadError, match=r"100\.0 kB are kept"):
        registry.pull(REF)
    assert final_names(home) == []
    server.cut_after, server.log = [], []
    assert registry.pull(REF).read_bytes() == CONTENT
    assert server.ranges() == ["bytes=100000-"]


def test_server_without_range_starts_over(home: Path, server: hub_server.Hub) -> None:
    """A server that ignores Range sends everything again, which is not appended."""
    server.cut_after, server.no_range = [100_000], True
    assert registry.pull(REF).read_bytes() == CONTENT


def test_wrong_hash_is_discarded(home: Path, server: hub_server.Hub) -> None:
    """Content that is not what the hub announced never gets the final name, and the part is not used again."""
    server.wrong_hash = True
    with pytest.raises(DownloadError, match=r"sha256 is .* expected "):
        registry.pull(REF)
    assert final_names(home) == []
    assert not list(home.rglob("*.part"))


def test_hub_that_names_no_hash_is_refused(home: Path, server: hub_server.Hub) -> None:
    """Nothing is downloaded that cannot be verified."""
    server.no_hash = True
    with pytest.raises(DownloadError, match="no sha256"):
        registry.pull(REF)
    assert server.ranges() == []


def test_statuses(home: Path, server: hub_server.Hub) -> None:
    """Passing faults are tried again, missing files and missing rights are said at once."""
    server.statuses = [503, 429]
    assert registry.pull(REF).read_bytes() == CONTENT
    with pytest.raises(ModelNotFoundError, match="no such file"):
        registry.pull("hf:owner/repo/other.gguf")
    server.statuses = [401]
    with pytest.raises(DownloadError, match="HF_TOKEN"):
        registry.pull("hf:owner/repo/other.gguf")
    server.statuses = [500] * 4
    with pytest.raises(DownloadError, match="500"):
        registry.pull("hf:owner/repo/other.gguf")


def test_renamed_repository(home: Path, server: hub_server.Hub) -> None:
    """A relative redirect (the repository has a new name) is followed."""
    server.files["owner/new/model.gguf"] = CONTENT
    server.renamed["owner/old"] = "owner/new"
    assert registry.pull("hf:owner/old/model.gguf").read_bytes() == CONTENT


def test_no_connection(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address where nobody answers is one line."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(DownloadError, match="no connection") as caught:
        registry.pull(REF)
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("HF_ENDPOINT", "nonsense")
    with pytest.raises(DownloadError, match="nonsense"):
        registry.pull(REF)


def test_shards(home: Path, server: hub_server.Hub) -> None:
    """Naming one shard fetches all; the path of the named one is returned."""
    for i in (1, 2, 3):
        server.files[f"owner/repo/q8/m-{i:05d}-of-00003.gguf"] = CONTENT[: 1000 * i]
    path = registry.resolve("hf:owner/repo/q8/m-00002-of-00003.gguf")
    assert path.name == "m-00002-of-00003.gguf"
    assert [p.stat().st_size for p in sorted(path.parent.glob("*.gguf"))] == [1000, 2000, 3000]
    assert registry.verify("hf:owner/repo/q8/m-00002-of-00003.gguf") is not None
    listed = [(row.name, row.bytes) for row in registry.list_models() if row.path]
    assert listed == [("hf:owner/repo/q8/m-00001-of-00003.gguf", 6000)]


def test_damaged_file_is_found_and_replaced(home: Path, server: hub_server.Hub) -> None:
    """verify sees a changed byte; a file of the wrong size is downloaded again."""
    path = registry.pull(REF)
    path.write_bytes(CONTENT[:-1] + b"?")
    with pytest.raises(DownloadError, match="pull --force"):
        registry.verify(REF)
    assert registry.pull(REF, force=True).read_bytes() == CONTENT
    path.write_bytes(b"short")
    assert registry.resolve(REF).read_bytes() == CONTENT


# ---- the disk ------------------------------------------------------------------------------------------------------


def test_full_disk_is_noticed_first(home: Path, server: hub_server.Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for the file nothing is downloaded."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 1000))
    with pytest.raises(DownloadError, match=r"not enough disk space .*67\.6 MB needed, 1\.0 kB free"):
        registry.pull(REF)
    assert server.ranges() == []


def test_disk_fills_up_while_downloading(home: Path, server: hub_server.Hub) -> None:
    """When the operating system says that the disk is full, the answer is one line, and the part is kept."""

    def report(what: str, done: int, total: int | None) -> None:
        if done > 200_000:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(DownloadError, match="No space left on device; free some space") as caught:
        registry.pull(REF, report)
    assert "\n" not in str(caught.value)
    assert final_names(home) == []
    server.log.clear()
    assert registry.pull(REF).read_bytes() == CONTENT
    assert server.ranges()[0].startswith("bytes=")


def test_home_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EDGERT_HOME below a file is one line that names it."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGERT_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(DownloadError, match="EDGERT_HOME"):
        registry.pull(REF)


def test_ctrl_c_keeps_the_part_only(home: Path, server: hub_server.Hub) -> None:
    """KeyboardInterrupt passes through and leaves nothing under the final name; the lock is free again."""

    def report(what: str, done: int, total: int | None) -> None:
        if done > 200_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        registry.pull(REF, report)
    assert final_names(home) == []
    assert registry.pull(REF).read_bytes() == CONTENT


def _pull_in_process(name: str) -> str:
    return hashlib.sha256(registry.pull(name).read_bytes()).hexdigest()


def test_processes_that_pull_at_once(home: Path, server: hub_server.Hub) -> None:
    """One downloads, the others wait and use its file."""
    server.delay = 0.005
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        hashes = pool.map(_pull_in_process, [REF] * 3, chunksize=1)
    assert set(hashes) == {hashlib.sha256(CONTENT).hexdigest()}
    assert len(server.ranges()) == 1


# ---- wheels --------------------------------------------------------------------------------------------------------


def make_wheel(folder: Path, project: str, member: str, content: bytes) -> Path:
    """A wheel of one data file, as pip wants it."""
    stem = f"{project.replace('-', '_')}-1.0"
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(member, content)
        wheel.writestr(f"{stem}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: 1.0\n")
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of two wheels that pip is told to use, and a models.toml with the model that they make."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for i, part in enumerate((CONTENT[:300_000], CONTENT[300_000:])):
        make_wheel(folder, f"edgert-test-part{i}", f"data/part{i}", part)
    rows = [f'"pypi:edgert-test-part{i}==1.0/data/part{i}"' for i in (0, 1)]
    toml = tmp_path / "models.toml"
    toml.write_text(
        f'default = "tiny"\n[models.tiny]\nsource = [{", ".join(rows)}]\nbytes = {len(CONTENT)}\n'
        f'sha256 = "{hashlib.sha256(CONTENT).hexdigest()}"\nlicence = "MIT"\ncontext = 8\nabout = "test"\n'
    )
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(registry, "models_file", lambda: toml)
    for cached in (registry.known, registry._table):
        cached.cache_clear()
    yield folder
    for cached in (registry.known, registry._table):
        cached.cache_clear()


def test_wheels_are_joined(home: Path, index: Path) -> None:
    """Members are joined in order, verified, and the wheels are gone afterwards; pip's settings are the user's."""
    path = registry.resolve("tiny")
    assert path.read_bytes() == CONTENT
    assert registry.verify("tiny") == hashlib.sha256(CONTENT).hexdigest()
    assert not list(home.rglob("*.whl"))
    assert registry.list_models()[0].path == path


def test_finished_wheels_are_reused(home: Path, index: Path) -> None:
    """What an interrupted pull had fetched is not fetched again."""
    (index / "edgert_test_part1-1.0-py3-none-any.whl").rename(index / "hidden")
    with pytest.raises(DownloadError, match="edgert-test-part1"):
        registry.pull("tiny")
    assert [p.name for p in home.rglob("*.whl")] == ["edgert_test_part0-1.0-py3-none-any.whl"]
    (index / "edgert_test_part0-1.0-py3-none-any.whl").unlink()
    (index / "hidden").rename(index / "edgert_test_part1-1.0-py3-none-any.whl")
    assert registry.pull("tiny").read_bytes() == CONTENT


def test_wrong_wheel_content(home: Path, index: Path) -> None:
    """Content with another hash, too much of it, or none of that name: discarded, one line."""
    for member, content in (("data/part1", b"?" * 224_288), ("data/part1", CONTENT), ("data/other", b"")):
        make_wheel(index, "edgert-test-part1", member, content)
        with pytest.raises(DownloadError, match="discarded") as caught:
            registry.pull("tiny")
        assert "\n" not in str(caught.value)
        assert final_names(home) == []
        assert not list(home.rglob("*part1*.whl"))
    make_wheel(index, "edgert-test-part1", "data/part1", CONTENT[300_000:])
    assert registry.pull("tiny").read_bytes() == CONTENT


def test_file_copied_by_hand(home: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a computer without a network the file can be put in place by hand: it is used if its hash is right."""
    target = registry.target_path("tiny")
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT)
    monkeypatch.setenv("PIP_FIND_LINKS", str(index / "nothing-here"))
    assert registry.resolve("tiny") == target
    assert registry.installed_path("tiny") == target


def test_without_pip(home: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an environment without pip (uv makes such) the copy that comes with Python is used, else that is said."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else found(name))
    if list(Path(found("ensurepip").origin).parent.glob("_bundled/pip-*.whl")):
        assert registry.pull("tiny").read_bytes() == CONTENT
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match="no pip"):
        registry.pull("tiny", force=True)
