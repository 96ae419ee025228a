"""The store: what is written comes back, what is damaged, foreign or open to others does not, and nothing crashes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxbucket.passes.errors import StoreError
from fxbucket.sealed import Stored, seal
from fxbucket.store import Store, default_folder

KEY, OTHER = "ab" * 32, "cd" * 32
ENTRY = Stored(b"payload", {"ab/kernel.so": b"\x7fELF", "cd/two words.so": b""}, {"title": "piece_0", "seconds": 1.5})

as_root = pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can give files to another user")

names = st.lists(st.text("abcü .-", min_size=1).filter(lambda part: part not in (".", "..")), min_size=1, max_size=3).map(
    "/".join
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
entries = st.builds(
    Stored, st.binary(), st.dictionaries(names, st.binary(), max_size=3), st.dictionaries(st.text(), plain, max_size=3)
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def path_of(store: Store, key: str = KEY) -> Path:
    return store.folder / key[:2] / f"{key}.artifact"


def in_child(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run code in another process; ``store`` and ``ENTRY`` are there."""
    head = "import os, sys, time, resource, signal\nfrom pathlib import Path\n" + textwrap.dedent(
        """
        from fxbucket.passes.errors import StoreError
        from fxbucket.store import Store, Stored
        KEY, OTHER = "ab" * 32, "cd" * 32
        ENTRY = Stored(b"payload", {}, {})
        """
    )
    command = [sys.executable, "-c", head + textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


@given(entries)
def test_what_is_put_comes_back(tmp_path_factory: pytest.TempPathFactory, entry: Stored):
    store = Store(tmp_path_factory.mktemp("store"))
    size = store.put(KEY, entry)
    assert store.get(KEY) == entry
    (facts,) = store.entries()
    assert (facts.key, facts.size, facts.about, facts.fault) == (KEY, size, entry.about, "")
    assert facts.path.stat().st_size == size
    assert [facts.fault for facts in store.verify()] == [""]


def test_the_order_of_libraries_comes_back():
    assert seal(KEY, Stored(b"", {"b": b"1", "a": b"22"})) != seal(KEY, Stored(b"", {"a": b"22", "b": b"1"}))


@given(entries)
def test_the_same_entry_is_the_same_bytes(entry: Stored):
    assert seal(KEY, entry) == seal(KEY, Stored(entry.payload, dict(entry.libraries), dict(entry.about)))


def test_there_is_nothing_in_an_empty_store(store: Store):
    assert store.get(KEY) is None
    assert list(store.entries()) == list(store.verify()) == store.prune(0) == []
    assert store.clear() == 0


def test_a_second_entry_takes_the_place_of_the_first(store: Store):
    store.put(KEY, ENTRY)
    store.put(OTHER, ENTRY)
    store.put(KEY, Stored(b"new"))
    assert store.get(KEY) == Stored(b"new")
    assert store.get(OTHER) == ENTRY


@pytest.mark.parametrize(
    "key", ["", "ab", "AB" * 32, "../" * 21 + "x", "ab/" + "c" * 61, "g" * 64, "ab" * 32 + "\n", "ab" * 33]
)
def test_a_key_of_odd_shape_is_refused(store: Store, key: str):
    for use in (lambda: store.get(key), lambda: store.put(key, ENTRY), lambda: store.lock(key).__enter__()):
        with pytest.raises(StoreError, match="is no key"):
            use()
    assert list(store.folder.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["/etc/x.so", "../x.so", "a/../../x.so", "", "a//b", "./x.so", "a\\b.so", "C:x.so", "a\0.so"]
)
def test_a_library_that_would_lie_elsewhere_is_refused(store: Store, name: str):
    with pytest.raises(StoreError, match="outside its folder"):
        store.put(KEY, Stored(b"", {name: b""}))
    assert list(store.entries()) == []


# Damage


@given(st.data())
def test_an_entry_that_is_cut_off_anywhere_is_an_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    entry = data.draw(entries)
    store = Store(tmp_path_factory.mktemp("store"))
    store.put(KEY, entry)
    whole = path_of(store).read_bytes()
    for length in {0, 1, len(whole) - 1, data.draw(st.integers(0, len(whole) - 1))}:
        path_of(store).write_bytes(whole[:length])
        with pytest.raises(StoreError, match=r"damaged|version"):
            store.get(KEY)
        (facts,) = store.verify()
        assert facts.fault


def test_every_length_and_every_flipped_bit_of_one_entry_is_an_error(store: Store):
    store.put(KEY, ENTRY)
    whole = path_of(store).read_bytes()
    damaged = [whole[:length] for length in range(len(whole))]
    for place in range(len(whole)):
        damaged += [whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :] for bit in range(8)]
    for content in (*damaged, whole + b"x", b"\n" * 100):
        path_of(store).write_bytes(content)
        with pytest.raises(StoreError):
            store.get(KEY)


@given(st.binary())
def test_any_bytes_at_all_are_an_error(tmp_path_factory: pytest.TempPathFactory, content: bytes):
    store = Store(tmp_path_factory.mktemp("store"))
    store.put(KEY, ENTRY)
    path_of(store).write_bytes(content)
    with pytest.raises(StoreError):
        store.get(KEY)
    assert [bool(facts.fault) for facts in store.entries()] == [True]


def sealed_by_hand(header: object, body: bytes = b"", magic: bytes = b"fxbucket artifact 1\n") -> bytes:
    line = header if isinstance(header, bytes) else json.dumps(header).encode()
    return magic + hashlib.sha256(line).hexdigest().encode() + b"\n" + line + b"\n" + body


HEADER: dict[str, Any] = {
    "key": KEY,
    "checksum": hashlib.sha256(b"").hexdigest(),
    "payload": 0,
    "libraries": {},
    "about": {},
}


def test_the_header_of_these_tests_would_be_right(store: Store):
    store.put(KEY, ENTRY)
    path_of(store).write_bytes(sealed_by_hand(HEADER))
    assert store.get(KEY) == Stored(b"")


@pytest.mark.parametrize(
    "header",
    [
        b"{", b"", b"\xff", b"[" * 100_000, [], "text", None, 1,
        {}, HEADER | {"more": 1}, {name: value for name, value in HEADER.items() if name != "about"},
        HEADER | {"payload": -1}, HEADER | {"payload": 1}, HEADER | {"payload": "0"}, HEADER | {"payload": True},
        HEADER | {"libraries": []}, HEADER | {"libraries": {"a.so": -1}}, HEADER | {"libraries": {"a.so": 5}},
        HEADER | {"libraries": {"../a.so": 0}}, HEADER | {"about": []}, HEADER | {"checksum": None}, HEADER | {"key": None},
        HEADER | {"key": OTHER},
    ],
    ids=repr,
)  # fmt: skip
def test_a_malformed_header_under_a_right_checksum_is_an_error(store: Store, header: object):
    store.put(KEY, ENTRY)
    path_of(store).write_bytes(sealed_by_hand(header))
    with pytest.raises(StoreError):
        store.get(KEY)
    assert [bool(facts.fault) for facts in store.verify()] == [True]


def test_an_entry_of_another_version_is_an_error_that_says_so(store: Store):
    store.put(KEY, ENTRY)
    path_of(store).write_bytes(sealed_by_hand(HEADER, magic=b"fxbucket artifact 0\n"))
    with pytest.raises(StoreError, match="not of this version"):
        store.get(KEY)


def test_an_entry_under_another_key_is_an_error(store: Store):
    store.put(KEY, ENTRY)
    path_of(store, OTHER).parent.mkdir(mode=0o700)
    path_of(store).rename(path_of(store, OTHER))
    with pytest.raises(StoreError, match="another key"):
        store.get(OTHER)


def test_an_entry_in_the_wrong_folder_is_found_by_verify(store: Store):
    store.put(KEY, ENTRY)
    path_of(store).parent.rename(store.folder / "00")
    assert ["wrong folder" in facts.fault for facts in store.verify()] == [True]
    assert len(store.prune(1 << 30)) == 1


# Who may write


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o722, 0o777])
def test_a_folder_that_others_may_write_to_is_refused(tmp_path: Path, mode: int):
    tmp_path.chmod(mode)
    with pytest.raises(StoreError, match=r"written by others; run `chmod go-w"):
        Store(tmp_path)


@pytest.mark.parametrize("open_to_others", [lambda path: path, lambda path: path.parent])
def test_an_entry_that_others_may_write_to_is_refused(store: Store, open_to_others: Callable[[Path], Path]):
    store.put(KEY, ENTRY)
    open_to_others(path_of(store)).chmod(0o722)
    with pytest.raises(StoreError, match="written by others"):
        store.get(KEY)
    assert ["written by others" in facts.fault for facts in store.entries()] == [True]


@as_root
def test_what_belongs_to_another_user_is_refused(store: Store):
    store.put(KEY, ENTRY)
    for path in (path_of(store), path_of(store).parent, store.folder):
        os.chown(path, 65534, 65534)
        with pytest.raises(StoreError, match="another user"):
            Store(store.folder).get(KEY)
        os.chown(path, 0, 0)
    assert store.get(KEY) == ENTRY


def test_others_may_read(store: Store):
    store.put(KEY, ENTRY)
    for path in (path_of(store), path_of(store).parent, store.folder):
        path.chmod(0o755)
    assert Store(store.folder).get(KEY) == ENTRY


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_what_the_store_makes_is_private_whatever_the_umask_is(tmp_path: Path, umask: int):
    before = os.umask(umask)
    try:
        store = Store(tmp_path / "not there yet" / "store")
        store.put(KEY, ENTRY)
        with store.lock(KEY):
            pass
        # And when all of it was removed since it was opened.
        for path in (*path_of(store).parent.iterdir(), path_of(store).parent, store.folder):
            path.rmdir() if path.is_dir() else path.unlink()
        store.put(KEY, ENTRY)
    finally:
        os.umask(before)
    made = [store.folder, path_of(store).parent, path_of(store)]
    assert [stat.S_IMODE(path.stat().st_mode) & 0o022 for path in made] == [0, 0, 0]
    assert Store(store.folder).get(KEY) == ENTRY


def test_links_are_not_followed_inside_a_store(store: Store, tmp_path: Path):
    store.put(KEY, ENTRY)
    moved = tmp_path / "moved"
    path_of(store).rename(moved)
    path_of(store).symlink_to(moved)
    with pytest.raises(StoreError):
        store.get(KEY)
    path_of(store).unlink()
    path_of(store).parent.rmdir()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    path_of(store).parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="is a link"):
        store.put(KEY, ENTRY)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_store_behind_a_link_stays_where_it_was_opened(tmp_path: Path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = Store(tmp_path / "link")
    store.put(KEY, ENTRY)
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to(tmp_path)
    assert store.get(KEY) == ENTRY
    assert path_of(store).parent.parent == tmp_path / "real"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_an_error_and_nobody_waits_for_it(store: Store, make: Callable[[Path], None]):
    store.put(KEY, ENTRY)
    path_of(store).unlink()
    make(path_of(store))
    with pytest.raises(StoreError):
        store.get(KEY)
    assert [bool(facts.fault) for facts in store.entries()] == [True]


# Where it lies


@pytest.mark.parametrize("name", ["with space", "ümläut ☃", "-rf", "a'b\"c$d", "new\nline"])
def test_any_path_will_do(tmp_path: Path, name: str):
    store = Store(tmp_path / name / name)
    store.put(KEY, ENTRY)
    assert store.get(KEY) == ENTRY
    assert [facts.fault for facts in store.verify()] == [""]


def test_a_relative_folder_stays_where_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    store = Store(Path("store"))
    store.put(KEY, ENTRY)
    monkeypatch.chdir("/")
    assert store.get(KEY) == ENTRY


@pytest.mark.parametrize("folder", ["file", "file/below", "loop/below", "a\0b", "~nobody-of-this-name/x", "x" * 300])
def test_a_folder_that_cannot_be_is_an_error_that_names_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("loop").symlink_to("loop")
    with pytest.raises(StoreError, match="cache="):
        Store(Path(folder))


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("FXBUCKET_CACHE_DIR", str(tmp_path))
    assert default_folder() == tmp_path
    monkeypatch.setenv("FXBUCKET_CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert default_folder().name == "fxbucket"
    if sys.platform == "linux":
        assert default_folder() == tmp_path / "caches" / "fxbucket"


# What the system refuses


def test_a_file_that_cannot_grow_is_an_error_and_leaves_nothing(store: Store):
    """Where a limit on the size of files takes the place of a full disk."""
    done = in_child(
        """
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        store = Store(Path(sys.argv[1]))
        store.put(OTHER, ENTRY)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            store.put(KEY, Stored(bytes(10_000)))
        except StoreError as error:
            print(error)
        print(store.get(OTHER) == ENTRY)
        """,
        store.folder,
    )
    assert "cannot be written: [Errno 27]" in done.stdout, done.stderr
    assert done.stdout.endswith("True\n")
    assert [facts.key for facts in store.entries()] == [OTHER]
    assert list(store.folder.rglob("*.unfinished")) == []


@as_root
def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path):
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", tmp_path], capture_output=True)
    if mounted.returncode:
        pytest.skip("this machine does not let root mount a file system")
    try:
        store = Store(tmp_path)
        store.put(OTHER, ENTRY)
        with pytest.raises(StoreError, match="No space left"):
            store.put(KEY, Stored(bytes(100_000)))
        assert store.get(KEY) is None
        assert store.get(OTHER) == ENTRY
        assert list(store.folder.rglob("*.unfinished")) == []
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Give a folder that any user of the machine gets to, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="fxbucket-test-", dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


AS_NOBODY = """
        os.setgid(65534)
        os.setuid(65534)
"""


@as_root
def test_a_folder_that_this_user_may_only_read_serves_and_does_not_grow(open_path: Path):
    store = Store(open_path / "store")
    store.put(KEY, ENTRY)
    before = path_of(store).stat().st_mtime
    for path in (store.folder, *store.folder.rglob("*")):
        os.chown(path, 65534, 65534)
        path.chmod(0o500 if path.is_dir() else 0o400)
    done = in_child(
        AS_NOBODY
        + """
        store = Store(Path(sys.argv[1]))
        print(store.get(KEY).payload)
        with store.lock(OTHER, wait=False) as held:
            print(held)
        with store.lock(KEY, wait=False) as held:
            print(held)
        for use in (lambda: store.put(KEY, ENTRY), lambda: store.put(OTHER, ENTRY), lambda: store.prune(0)):
            try:
                use()
            except StoreError as error:
                print("Permission denied" in str(error))
        """,
        store.folder,
    )
    assert done.stdout.split() == ["b'payload'", "True", "True", "True", "True", "True"], done.stderr
    assert path_of(store).stat().st_mtime == pytest.approx(before, abs=60)


@as_root
def test_a_folder_that_this_user_may_not_read_is_an_error(open_path: Path):
    store = Store(open_path / "store")
    done = in_child(
        AS_NOBODY
        + """
        for path in (Path(sys.argv[1]), Path(sys.argv[1], "below"), Path("/proc/no")):
            try:
                Store(path)
            except StoreError as error:
                print("cache=" in str(error))
        """,
        store.folder,
    )
    assert done.stdout.split() == ["True", "True", "True"], done.stderr


# Processes that end in the middle


def test_a_writer_that_is_killed_leaves_what_nobody_reads(store: Store):
    store.put(KEY, ENTRY)
    done = in_child(
        """
        # The last step before the new file takes the old one's place.
        os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        Store(Path(sys.argv[1])).put(KEY, Stored(b"new"))
        """,
        store.folder,
    )
    assert done.returncode == -signal.SIGKILL
    (left,) = store.folder.rglob("*.unfinished")
    assert store.get(KEY) == ENTRY
    assert [facts.fault for facts in store.verify()] == [""]
    store.prune(1 << 30)
    assert left.exists()  # its writer may be alive
    os.utime(left, (time.time() - 7200, time.time() - 7200))
    store.prune(1 << 30)
    assert not left.exists()
    assert store.get(KEY) == ENTRY


def test_a_lock_is_held_by_one_and_freed_when_its_holder_is_killed(store: Store):
    code = """
    with Store(Path(sys.argv[1])).lock(KEY) as held:
        print(held, flush=True)
        time.sleep(100)
    """
    head = "import sys, time\nfrom pathlib import Path\nfrom fxbucket.store import Store\nKEY = 'ab' * 32\n"
    command = [sys.executable, "-c", head + textwrap.dedent(code), str(store.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        with store.lock(KEY, wait=False) as held:
            assert not held
        with store.lock(OTHER, wait=False) as held:
            assert held
        store.prune(1 << 30)  # takes no lock away from its holder
        with store.lock(KEY, wait=False) as held:
            assert not held
        holder.kill()
    with store.lock(KEY) as held:
        assert held


def test_an_error_lets_go_of_a_lock(store: Store):
    with pytest.raises(RuntimeError, match="stop"), store.lock(KEY):
        raise RuntimeError("stop")
    with store.lock(KEY, wait=False) as held:
        assert held


# Room


def filled(store: Store, sizes: list[int]) -> list[str]:
    """Put entries of these payloads, each used an hour after the one before it."""
    keys = [f"{number:02x}" * 32 for number in range(len(sizes))]
    for number, (key, size) in enumerate(zip(keys, sizes, strict=True)):
        store.put(key, Stored(bytes(size)))
        os.utime(path_of(store, key), (number * 3600.0, number * 3600.0))
    return keys


@given(st.lists(st.integers(0, 3000), max_size=8), st.integers(0, 12_000))
def test_prune_keeps_what_was_used_last(tmp_path_factory: pytest.TempPathFactory, sizes: list[int], most: int):
    store = Store(tmp_path_factory.mktemp("store"))
    keys = filled(store, sizes)
    sized = {facts.key: facts.size for facts in store.entries()}
    removed = [facts.key for facts in store.prune(most)]
    kept = [facts.key for facts in store.entries()]
    assert sorted(removed + kept) == sorted(keys)
    assert removed == keys[: len(removed)]  # the oldest, in order
    assert sum(sized[key] for key in kept) <= most
    if removed:  # and no more than needed
        assert sum(sized[key] for key in [*kept, removed[-1]]) > most


def test_what_was_read_counts_as_used_and_what_was_verified_does_not(store: Store):
    first, second, third = filled(store, [10, 10, 10])
    store.get(first)
    assert len(list(store.verify())) == 3
    size = max(facts.size for facts in store.entries())
    assert [facts.key for facts in store.prune(size)] == [second, third]
    assert store.get(first) is not None


def test_prune_takes_what_cannot_be_used_first(store: Store):
    keys = filled(store, [10, 10, 10])
    path_of(store, keys[2]).write_bytes(b"damaged")
    assert [facts.key for facts in store.prune(1 << 30)] == [keys[2]]


def test_clear_removes_all_of_it_and_nothing_else(store: Store):
    keys = filled(store, [10, 20])
    path_of(store, keys[0]).write_bytes(b"damaged")
    (store.folder / "notes.txt").write_text("mine")
    with store.lock(keys[1]):
        pass
    assert store.clear() == 2
    assert [path.name for path in store.folder.rglob("*") if path.is_file()] == ["notes.txt"]
    store.put(keys[0], ENTRY)
    assert store.get(keys[0]) == ENTRY
