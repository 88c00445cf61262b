"""Downloads against a real server on the loopback: every way a transfer goes wrong, and hand downloads."""

import errno
import io
import re
import stat
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from relief_ray.data import load_dataset
from relief_ray.data.fetch import fetch, import_from
from relief_ray.support.errors import UserError

NAME = "mhealth+dataset.zip"


@dataclass
class Site:
    """Contents and behaviours of the server: one behaviour per request, the last one for all that follow."""

    content: bytes
    behaviours: list[str]
    url: str = ""
    ranges: list[str | None] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site

    def log_message(self, format: str, *args: object) -> None:
        """Keep the tests' output clean."""

    def do_GET(self) -> None:
        site = self.site
        byte_range = self.headers.get("Range")
        site.ranges.append(byte_range)
        behaviour = site.behaviours.pop(0) if len(site.behaviours) > 1 else site.behaviours[0]
        if behaviour.isdigit():
            self.answer(int(behaviour), b"sorry")
        elif behaviour == "page":
            self.answer(200, b"<!DOCTYPE html><html>moved</html>", {"Content-Type": "text/html"})
        elif behaviour == "no length":
            self.answer(200, site.content, length=False)
        elif behaviour.startswith("cut"):
            self.answer(200, site.content, keep=len(site.content) // 2)
        elif behaviour == "ranges" and byte_range:
            first = int(re.fullmatch(r"bytes=(\d+)-", byte_range)[1])  # type: ignore[index]
            total = len(site.content)
            self.answer(206, site.content[first:], {"Content-Range": f"bytes {first}-{total - 1}/{total}"})
        else:
            self.answer(200, site.content)

    def answer(
        self, code: int, body: bytes, headers: dict[str, str] | None = None, *, length: bool = True, keep: int = -1
    ) -> None:
        self.send_response(code)
        for key, value in {"Content-Type": "application/zip", **(headers or {})}.items():
            self.send_header(key, value)
        if length:
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body if keep < 0 else body[:keep])
        self.close_connection = True


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes, list[str]], Site]]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for name, value in {"ATTEMPTS": 4, "PAUSE_S": 0.01, "TIMEOUT_S": 5.0}.items():
        monkeypatch.setattr(f"relief_ray.data.fetch.{name}", value)
    servers: list[ThreadingHTTPServer] = []

    def start(content: bytes, behaviours: list[str]) -> Site:
        site = Site(content=content, behaviours=behaviours)
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("OwnHandler", (Handler,), {"site": site}))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        site.url = f"http://127.0.0.1:{server.server_address[1]}/static/{NAME}"
        return site

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def zipped(files: dict[str, bytes], mode: int = 0) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return out.getvalue()


@pytest.fixture(scope="module")
def good(mhealth_root: Path) -> bytes:
    """A small archive with one bout of every activity per subject."""
    files = sorted((mhealth_root / "mhealth_SYNTHETIC").rglob("*.log"))
    assert len(files) == 10
    return zipped({f"MHEALTHDATASET/{file.name}": file.read_bytes() for file in files})


Serve = Callable[[bytes, list[str]], Site]


def get(site: Site, root: Path) -> Path:
    report = fetch("mhealth", root, url=site.url)
    path = Path(report["path"])
    assert path == root / "mhealth" / NAME
    assert path.read_bytes() == site.content
    assert report["num_bytes"] == len(site.content)
    return path


@pytest.mark.ci
def test_plain_with_progress(serve: Serve, good: bytes, tmp_path: Path) -> None:
    site = serve(good, ["whole"])
    heard: list[tuple[int, int | None]] = []
    report = fetch("mhealth", tmp_path, url=site.url, progress=lambda *now: heard.append(now))
    assert heard[-1] == (len(good), len(good))
    assert len(report["verification"]["warnings"]) == 10
    assert report["verification"]["origin"] == "SYNTHETIC"  # the watermark outlives the missing marker
    assert load_dataset("mhealth", tmp_path).origin == "SYNTHETIC"
    fetch("mhealth", tmp_path, url=site.url)
    assert len(site.ranges) == 1  # what is there is not fetched again


@pytest.mark.ci
@pytest.mark.parametrize(
    "behaviours",
    [
        ["no length"],
        ["502", "503", "whole"],
        ["429", "whole"],
        ["cut", "ranges"],
        ["cut", "whole"],  # no Range offered: from the start
        ["cut", "416", "whole"],
        ["cut", "502", "cut", "ranges"],
    ],
    ids=lambda behaviours: ",".join(behaviours),
)
def test_trouble_that_passes(serve: Serve, good: bytes, tmp_path: Path, behaviours: list[str]) -> None:
    site = serve(good, list(behaviours))
    get(site, tmp_path)
    if behaviours[-1] == "ranges":
        assert site.ranges[-1] == f"bytes={len(good) // 2}-"


@pytest.mark.parametrize(
    ("behaviours", "said"),
    [
        (["page"], "web page instead of an archive; use --from FILE"),
        (["404"], "the server says 404"),
        (["502"], "not complete after 4 attempts .*502"),
        (["cut"], r"not complete after 4 attempts \(.*bytes are kept in .*run the command again"),
    ],
)
def test_trouble_that_stays(serve: Serve, good: bytes, tmp_path: Path, behaviours: list[str], said: str) -> None:
    site = serve(good, behaviours)
    with pytest.raises(UserError, match=said):
        get(site, tmp_path)
    assert not (tmp_path / "mhealth" / NAME).exists()


def test_a_later_command_goes_on(serve: Serve, good: bytes, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not complete"):
        get(serve(good, ["cut"]), tmp_path)
    site = serve(good, ["ranges"])
    get(site, tmp_path)
    assert site.ranges == [f"bytes={len(good) // 2}-"]


def test_cut_without_a_length_is_noticed(serve: Serve, good: bytes, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not a whole zip archive"):
        get(serve(good[:-30], ["no length"]), tmp_path)
    get(serve(good, ["whole"]), tmp_path)  # nothing stands in the way of the next attempt


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (zipped({"../../out.log": b"1"}), "outside the archive's folder"),
        (zipped({"mHealth_subject1.log": b"/etc/passwd"}, stat.S_IFLNK | 0o777), "is a link"),
        (zipped({"README.txt": b"1"}), r"does not hold files like '\(\^\|/\)\S+', found in it: README\.txt; another"),
        (zipped({"inner.zip": zipped({"README.txt": b"1"})}), "does not hold files like"),
        (zipped({"mHealth_subject1.log": b"1 2 3"}), "9 of 10 files"),
    ],
    ids=["climbs", "links", "other", "other inside", "incomplete"],
)
def test_archives_that_are_refused(serve: Serve, tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(UserError, match=said):
        get(serve(content, ["whole"]), tmp_path)
    left = [file.name for file in tmp_path.rglob("*") if file.is_file()]
    assert set(left) <= {NAME + ".rejected"}


def test_a_zip_in_a_zip(serve: Serve, good: bytes, tmp_path: Path) -> None:
    get(serve(zipped({"MHEALTHDATASET.zip": good}), ["whole"]), tmp_path)
    assert load_dataset("mhealth", tmp_path).signal().shape[1] == 23


def test_a_full_disk_while_unpacking_rejects_no_archive(
    serve: Serve, good: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = serve(zipped({"MHEALTHDATASET.zip": good}), ["whole"])
    with monkeypatch.context() as full:
        full.setattr("tempfile.tempdir", str(tmp_path / "full"))
        with pytest.raises(UserError, match=r"cannot unpack .* \(TMPDIR\)"):
            get(site, tmp_path)
    get(site, tmp_path)  # what was downloaded is still there


@pytest.mark.parametrize("form", ["file", "folder"])
def test_hand_downloads(
    good: bytes, mhealth_root: Path, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path / "root"))
    download = mhealth_root / "mhealth_SYNTHETIC"
    if form == "file":
        download = tmp_path / "Downloads.zip"
        download.write_bytes(good)
    report = import_from("mhealth", download)
    assert report["verification"]["ok"], report["verification"]["problems"]
    dataset = load_dataset("mhealth")
    assert dataset.origin == "SYNTHETIC"
    assert str(dataset.source.path).startswith(str(tmp_path / "root"))


def test_a_hand_download_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(zipped({"README.txt": b"1"}))
    with pytest.raises(UserError, match="not found"):
        import_from("mhealth", tmp_path / "x.zip")


@pytest.mark.parametrize("form", ["address", "file", "folder"])
def test_a_place_that_cannot_be_written(
    good: bytes, mhealth_root: Path, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.zip").write_bytes(good)
    (tmp_path / "root").write_text("a file")
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path / "root"))
    own = tmp_path / "own.zip" if form == "file" else mhealth_root / "mhealth_SYNTHETIC"
    with pytest.raises(UserError, match=r"root/mhealth/.*: cannot write: Not a directory; expected a writable place"):
        fetch("mhealth", url="https://127.0.0.1:9/x.zip") if form == "address" else import_from("mhealth", own)


@pytest.mark.parametrize("form", ["address", "file"])
def test_a_disk_that_fills_up_before_the_last_byte_is_safe(
    serve: Serve, good: bytes, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.zip").write_bytes(good)
    monkeypatch.setenv("RELIEF_DATA", str(tmp_path / "root"))
    monkeypatch.setattr("os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
    with pytest.raises(UserError, match=r"root/mhealth/\S*\.zip(\.part)?: cannot .*: No space left"):
        if form == "address":
            fetch("mhealth", url=serve(good, ["whole"]).url)
        else:
            import_from("mhealth", tmp_path / "own.zip")


def test_no_address_and_bad_address(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no download address"):
        fetch("dsa_mini", tmp_path)
    with pytest.raises(UserError, match="expected an address that begins with https:// or http://"):
        fetch("mhealth", tmp_path, url="file:///etc/passwd")
