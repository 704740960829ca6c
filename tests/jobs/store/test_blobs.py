"""The content store keeps what is whole and needed, and nothing else."""

import hashlib
import os
from pathlib import Path

import pytest

from app.jobs.errors import BlobNotFoundError, HashMismatchError, StoreOutageError, TooLargeError
from app.jobs.store.blobs import Blob, BlobStore
from app.jobs.store.database import Database, model_files, models
from app.settings import Settings
from tests.jobs.s3 import S3


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path, database: Database) -> BlobStore:
    url = "" if request.param == "folder" else request.getfixturevalue("s3").bucket() + "/a prefix"
    return BlobStore.of(Settings(data=tmp_path, blobs=url), database)


def put(store: BlobStore, content: bytes, **how: float) -> str:
    with store.upload(1000) as upload:
        for i in range(0, len(content), 3):
            upload.write(content[i : i + 3])
        return upload.commit(**how).sha256  # type: ignore[arg-type]


def content_of(store: BlobStore, sha256: str) -> bytes | None:
    try:
        return store.path(sha256).read_bytes()
    except (BlobNotFoundError, FileNotFoundError):
        return None


def test_a_blob_is_found_by_the_hash_of_its_bytes(store: BlobStore) -> None:
    sha256 = put(store, b"some bytes")
    assert sha256 == hashlib.sha256(b"some bytes").hexdigest()
    assert store.path(sha256).read_bytes() == b"some bytes"
    assert store.size(sha256) == 10
    assert store.path(sha256).stat().st_mode & 0o222 == 0


def test_the_same_bytes_again_are_the_same_blob(store: BlobStore) -> None:
    put(store, b"twice")
    with store.upload(1000) as upload:
        upload.write(b"twice")
        assert not upload.commit().created
    assert list(store.incoming.iterdir()) == []


def test_bytes_that_are_not_what_was_announced_leave_nothing(store: BlobStore) -> None:
    wrong = "0" * 64
    with store.upload(1000) as upload:
        upload.write(b"x")
        with pytest.raises(HashMismatchError, match=wrong):
            upload.commit(expected=wrong)
    assert store.size(wrong) is None
    assert [p for p in store.incoming.parent.rglob("*") if p.is_file()] == []


def test_too_many_bytes_are_refused_while_they_come(store: BlobStore) -> None:
    with store.upload(4) as upload, pytest.raises(TooLargeError, match="4 byte"):
        upload.write(b"12345")
    assert list(store.incoming.iterdir()) == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "A" * 64, "", "0" * 63, "0" * 64 + "\n"])
def test_what_is_no_hash_is_no_path(store: BlobStore, name: str) -> None:
    with pytest.raises(BlobNotFoundError):
        store.path(name)


def test_free_deletes_what_nothing_needs(store: BlobStore, database: Database) -> None:
    loose, claimed, needed = put(store, b"loose"), put(store, b"claimed", claim=60), put(store, b"needed")
    with database.write() as connection:
        connection.execute(models.insert().values(id="m", size=6, state="ready", created=0))
        connection.execute(model_files.insert().values(model_id="m", name="", sha256=needed))
    assert store.free() == 1
    assert content_of(store, loose) is None
    assert content_of(store, claimed) == b"claimed"
    assert content_of(store, needed) == b"needed"
    with database.write() as connection:
        connection.execute(models.delete())
        store.settle(connection, [claimed])
    assert store.free() == 2


def entered(store: BlobStore, paths: dict[str, Path], limit: int = 1000) -> list[Blob]:
    with store.copies(paths, limit) as made, store._database.write() as connection:
        return store.enter(connection, list(made.values()))


def test_only_regular_files_are_taken_from_a_job(store: BlobStore, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic"):
        entered(store, {"a": tmp_path / "secret", "b": tmp_path / "link"})
    assert store.free() == 0
    assert store.size(entered(store, {"a": tmp_path / "secret"})[0].sha256) == 6
    with pytest.raises(TooLargeError):
        entered(store, {"a": tmp_path / "secret"}, limit=5)


def test_files_of_the_same_bytes_are_one_blob(store: BlobStore, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(b"same")
    kept = entered(store, {name: tmp_path / name for name in "ab"})
    assert kept[0].sha256 == kept[1].sha256
    assert content_of(store, kept[0].sha256) == b"same"
    assert list(store.incoming.iterdir()) == []


def test_a_file_with_two_names_is_copied_once(store: BlobStore, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"same")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    (tmp_path / "c").write_bytes(b"other")
    with store.copies({name: tmp_path / name for name in "abc"}, 1000) as made:
        assert len(list(store.incoming.iterdir())) == 2
        assert made["a"] is made["b"]
        assert made["c"].sha256 != made["a"].sha256


def test_bytes_that_the_store_has_are_not_copied(store: BlobStore, tmp_path: Path) -> None:
    sha256 = put(store, b"same", claim=60)
    (tmp_path / "a").write_bytes(b"same")
    with store.copies({"a": tmp_path / "a"}, 1000) as made, store._database.write() as connection:
        assert list(store.incoming.iterdir()) == []
        (kept,) = store.enter(connection, list(made.values()))
    assert kept.sha256 == sha256
    assert content_of(store, sha256) == b"same"


def test_bytes_that_were_removed_before_they_are_entered_are_copied_the_next_time(
    store: BlobStore, tmp_path: Path
) -> None:
    sha256 = put(store, b"same")
    (tmp_path / "a").write_bytes(b"same")
    with store.copies({"a": tmp_path / "a"}, 1000) as made:
        assert store.free() == 1
        with pytest.raises(StoreOutageError, match=sha256), store._database.write() as connection:
            store.enter(connection, list(made.values()))
    assert entered(store, {"a": tmp_path / "a"})[0].sha256 == sha256
    assert content_of(store, sha256) == b"same"


def test_what_another_machine_removed_comes_again(store: BlobStore, tmp_path: Path) -> None:
    sha256 = put(store, b"removed")
    assert store.free() == 1
    assert put(store, b"removed") == sha256
    assert content_of(store, sha256) == b"removed"


def test_copies_of_a_bucket_are_kept_while_there_is_room(s3: S3, database: Database, tmp_path: Path) -> None:
    url = s3.bucket()
    theirs = BlobStore.of(Settings(data=tmp_path / "theirs", blobs=url), database)
    ours = BlobStore.of(Settings(data=tmp_path / "ours", blobs=url, blob_copies_bytes=10), database)
    first, second, third = (put(theirs, text, claim=60) for text in (b"a" * 8, b"b" * 8, b"c" * 8))
    assert content_of(ours, first) == b"a" * 8
    os.utime(ours.path(first), (0, 0))  # long ago
    assert content_of(ours, second) == b"b" * 8
    copies = ours.path(second).parent
    assert {p.name for p in copies.iterdir()} == {first, second}, "there was room before the second"
    os.utime(copies / first, (0, 0))
    assert content_of(ours, third) == b"c" * 8
    assert {p.name for p in copies.iterdir()} == {second, third}
    assert content_of(ours, first) == b"a" * 8, "it is fetched again"


def test_a_bucket_that_does_not_answer_is_told(database: Database, tmp_path: Path, s3: S3) -> None:
    store = BlobStore.of(Settings(data=tmp_path, blobs="s3://there-is-no-such-bucket"), database)
    with pytest.raises(StoreOutageError):
        store.check()
    with pytest.raises(StoreOutageError):
        put(store, b"nowhere to go")
    assert list(store.incoming.iterdir()) == []
