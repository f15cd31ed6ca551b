"""Files are found in the promised order, read however packed, and never trusted unchecked when fetched."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cmp.datasets.fetching import PublicFile, RawFile, beside, find_file, open_file
from cmp.errors import DatasetError

CONTENT = json.dumps({"a": [1, 2, 3]}, indent=1).encode()
SHA256 = hashlib.sha256(CONTENT).hexdigest()
UNPUBLISHED = PublicFile("thing.json", SHA256, None, "ask its author", aliases=("other.json",))
PACKERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[str]:
    """Serve ``thing.json`` on this machine, as a public home would."""
    public = tmp_path / "public"
    public.mkdir()
    (public / "thing.json").write_bytes(CONTENT)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(public))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/thing.json"
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CMP_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("folder", ["", "data"])
def test_a_directory_may_hold_the_file_plain_or_packed(tmp_path: Path, suffix: str, folder: str) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / f"thing.json{suffix}").write_bytes(PACKERS[suffix](CONTENT))
    file = open_file(UNPUBLISHED, tmp_path)
    assert file.json() == {"a": [1, 2, 3]}
    assert file.sha256 == SHA256


def test_what_a_file_is_its_bytes_say_and_not_its_name(tmp_path: Path) -> None:
    (tmp_path / "named.badly").write_bytes(gzip.compress(CONTENT))
    assert open_file(UNPUBLISHED, tmp_path / "named.badly").raw == CONTENT


def test_a_given_path_goes_before_the_environment_and_it_before_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    file = PublicFile("thing.json", SHA256, home, "")
    for name in ("given", "environment"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thing.json").write_text(f'"{name}"')
    assert open_file(file).raw == CONTENT
    monkeypatch.setenv("CMP_DATA", str(tmp_path / "environment"))
    assert open_file(file).json() == "environment"
    assert open_file(file, tmp_path / "given").json() == "given"


def test_an_alias_is_found_and_another_name_is_not(tmp_path: Path) -> None:
    (tmp_path / "other.json.xz").write_bytes(lzma.compress(CONTENT))
    assert find_file(UNPUBLISHED, tmp_path).name == "other.json.xz"
    with pytest.raises(DatasetError, match=r"holds no nothing\.json"):
        find_file(PublicFile("nothing.json", "", None, ""), tmp_path)


def test_other_bytes_at_a_given_path_are_remarked_and_not_refused(tmp_path: Path) -> None:
    (tmp_path / "thing.json").write_text("[]")
    source = UNPUBLISHED.provenance(open_file(UNPUBLISHED, tmp_path))
    assert source["thing.json"] == hashlib.sha256(b"[]").hexdigest()
    assert SHA256 in source["thing.json, remark"]


def test_fetched_bytes_that_are_not_the_published_ones_are_refused(home: str) -> None:
    with pytest.raises(DatasetError, match="could not be fetched"):
        find_file(PublicFile("thing.json", "0" * 64, home, ""))


def test_without_a_network_the_error_names_the_three_ways() -> None:
    unreachable = PublicFile("thing.json", SHA256, "http://127.0.0.1:9/thing.json", "licensed so")
    with pytest.raises(DatasetError) as caught:
        find_file(unreachable)
    assert all(
        words in str(caught.value) for words in ("give its path", "$CMP_DATA", "a network", "licensed so")
    )


def test_a_file_without_a_public_home_says_so(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"no public home.*ask its author"):
        find_file(UNPUBLISHED)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_truncated_archive_is_an_error_that_names_the_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"thing.json{suffix}"
    path.write_bytes(PACKERS[suffix](CONTENT)[:-6])
    with pytest.raises(DatasetError, match=r"thing\.json.* truncated or corrupted"):
        open_file(UNPUBLISHED, path)


def test_a_corrupted_archive_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(CONTENT * 50))
    packed[20:24] = b"\xff\xff\xff\xff"
    (tmp_path / "thing.json.gz").write_bytes(packed)
    with pytest.raises(DatasetError, match=r"thing\.json\.gz is truncated or corrupted"):
        open_file(UNPUBLISHED, tmp_path)


def test_bad_json_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "thing.json"
    path.write_text('{\n "a": 1,\n "b": ]\n}')
    with pytest.raises(DatasetError, match="line 3: no valid JSON"):
        open_file(UNPUBLISHED, path).json()
    path.write_text('{"a": 1}\n\n{"b"\n')
    with pytest.raises(DatasetError, match="line 3: no valid JSON"):
        list(open_file(UNPUBLISHED, path).json_lines())


def test_bytes_that_are_no_utf8_are_an_error_that_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "thing.json").write_bytes(b'"a"\r\n"\xff"')
    with pytest.raises(DatasetError, match="line 2: no valid UTF-8"):
        open_file(UNPUBLISHED, tmp_path).json()


def test_an_unreadable_path_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="cannot be read"):
        RawFile.read(tmp_path / "absent")


def test_a_second_file_is_sought_with_the_first_unless_it_has_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert beside(tmp_path, None) == beside(tmp_path / "file", None) == tmp_path
    assert beside(tmp_path, "elsewhere") == "elsewhere"
    assert beside(None, None) is None
