"""The cache: a union that never overwrites, tiers of devices, and files that cannot be used."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from cache_rig import HERE, SIBLING, STRANGER, key, numbered, record

from speccc.autotune.cache import Tier, TuneCache
from speccc.autotune.cache_file import aside_files
from speccc.autotune.record import Outcome
from speccc.errors import InputError
from speccc.scratch import OWNER


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def cache(tmp_path: Path, said: list[str]) -> TuneCache:
    return TuneCache(tmp_path, notice=said.append)


def test_what_is_added_is_found_after_reopening(cache: TuneCache, tmp_path: Path) -> None:
    one = record()
    assert cache.add([one]) == 1
    cache.close()
    with TuneCache(tmp_path) as again:
        found = again.lookup(one.key)
    assert (found.tier, [e.record for e in found.entries]) == (Tier.EXACT, [one])


def test_adding_is_a_union(cache: TuneCache) -> None:
    first, second = record(ms=(1.0,)), record(ms=(1.5,))
    assert cache.add([first, first]) == 1
    assert cache.add([first, second]) == 1
    found = cache.lookup(first.key)
    assert sorted(e.record.ms for e in found.exact) == [(1.0,), (1.5,)]


def test_a_key_that_differs_is_a_miss(cache: TuneCache) -> None:
    cache.add([record()])
    assert cache.lookup(key(m=7)).tier is Tier.NOTHING
    assert cache.lookup(key(compilers={"tvm": "0.28.0"})).tier is Tier.NOTHING


def test_exact_device_then_family_then_nothing(cache: TuneCache) -> None:
    there = record(of=key(SIBLING))
    cache.add([there, record(of=key(STRANGER))])
    found = cache.lookup(key(HERE))
    assert (found.tier, [e.record for e in found.entries]) == (Tier.FAMILY, [there])
    here = record(of=key(HERE))
    cache.add([here])
    found = cache.lookup(key(HERE))
    assert (found.tier, [e.record for e in found.entries]) == (Tier.EXACT, [here])
    assert cache.stats().records == 3


def test_another_familys_records_are_nothing_here_but_kept(cache: TuneCache) -> None:
    cache.add([record(of=key(STRANGER))])
    assert cache.lookup(key(HERE)).tier is Tier.NOTHING
    assert cache.lookup(key(HERE)).entries == ()
    assert cache.lookup(key(STRANGER)).tier is Tier.EXACT


def test_failures_alone_do_not_hide_the_family(cache: TuneCache) -> None:
    cache.add([record(outcome=Outcome.TIMEOUT), record(of=key(SIBLING))])
    found = cache.lookup(key(HERE))
    assert found.tier is Tier.FAMILY
    assert [e.record.outcome for e in found.exact] == [Outcome.TIMEOUT]


def test_numerics_checked_on_a_sibling_are_not_checked_here(cache: TuneCache) -> None:
    """Its failures are believed: the code is the same."""
    cache.add([record(of=key(SIBLING)), record(of=key(SIBLING), outcome=Outcome.WRONG)])
    told = {e.record.outcome: e.verified for e in cache.lookup(key(HERE)).entries}
    assert told == {Outcome.OK: False, Outcome.WRONG: True}
    assert {e.verified for e in cache.lookup(key(SIBLING)).entries} == {True}


def test_a_closed_cache_says_so(cache: TuneCache, said: list[str]) -> None:
    cache.close()
    with pytest.raises(sqlite3.ProgrammingError):
        cache.add([record()])
    assert said == []


def test_unverified_until_checked(cache: TuneCache) -> None:
    one, two = record(), record(ms=(1.5,))
    cache.add([one, two], verified=False, origin="import")
    assert [e.verified for e in cache.lookup(key()).entries] == [False, False]
    assert cache.mark_verified([one.identity()]) == 1
    # Measured here as well: it is checked now. And an import never takes that back.
    assert cache.add([two]) == 0
    cache.add([one, two], verified=False)
    assert [e.verified for e in cache.lookup(key()).entries] == [True, True]


def test_all_or_nothing(cache: TuneCache) -> None:
    def broken() -> object:
        yield record()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        cache.add(broken())  # type: ignore[arg-type]
    assert cache.stats().records == 0


def test_only_the_owner_may_read_it(cache: TuneCache, tmp_path: Path) -> None:
    cache.add([record()])
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path.name


def test_what_a_killed_maker_left_goes_with_the_next_making(tmp_path: Path) -> None:
    """A folder that nobody holds: its owner was killed while it made the file."""
    left = tmp_path / ".tune.sqlite.left"
    left.mkdir()
    (left / OWNER).touch()
    (left / "tune.sqlite").write_bytes(b"half")
    TuneCache(tmp_path).close()
    assert {p.name for p in tmp_path.iterdir()} == {"tune.lock", "tune.sqlite"}


def empty(path: Path) -> bytes:
    path.write_bytes(b"")
    return b""


def text(path: Path) -> bytes:
    path.write_bytes(b"a,b\n1,2\n" * 999)
    return path.read_bytes()


def other_program(path: Path) -> bytes:
    with closing(sqlite3.connect(path)) as db:
        db.executescript("CREATE TABLE record (id, body); INSERT INTO record VALUES (1, 2);")
    return path.read_bytes()


def no_tables(path: Path) -> bytes:
    fill(path)
    with closing(sqlite3.connect(path)) as db:
        db.executescript("DROP TABLE record; PRAGMA journal_mode = DELETE;")
    return path.read_bytes()


def cut_short(path: Path) -> bytes:
    fill(path)
    os.truncate(path, path.stat().st_size // 2)
    return path.read_bytes()


def scribbled(path: Path) -> bytes:
    fill(path)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\x5a" * 8192)
    return path.read_bytes()


def scribbled_late(path: Path) -> bytes:
    """A page that opening alone does not read."""
    fill(path)
    with path.open("r+b") as file:
        file.seek(-4096, os.SEEK_END)
        file.write(b"\x5a" * 4096)
    return path.read_bytes()


def fill(path: Path) -> None:
    with TuneCache(path.parent) as made:
        made.add([numbered(0, i) for i in range(60)])


@pytest.mark.parametrize(
    "make", [empty, text, other_program, no_tables, cut_short, scribbled, scribbled_late]
)
def test_an_unusable_file_is_a_miss_and_is_kept(
    make: Callable[[Path], bytes], tmp_path: Path, said: list[str]
) -> None:
    content = make(tmp_path / "tune.sqlite")
    with TuneCache(tmp_path, notice=said.append) as cache:
        assert cache.lookup(key()).tier is Tier.NOTHING
        assert cache.add([record()]) == 1
        assert cache.lookup(key()).tier is Tier.EXACT
    assert len(said) == 1
    assert "tune.sqlite" in said[0]
    # SQLite may have left its log beside a file it could not close in order.
    (kept,) = [path for path in aside_files(tmp_path) if path.name[-4:] not in ("-wal", "-shm")]
    assert kept.name in said[0]
    assert kept.read_bytes() == content
    # The second opening finds nothing wrong and finds the record.
    with TuneCache(tmp_path, notice=said.append) as cache:
        assert cache.lookup(key()).tier is Tier.EXACT
    assert len(said) == 1


def test_a_newer_file_is_left_alone_and_ours_lies_beside_it(
    tmp_path: Path, said: list[str]
) -> None:
    path = tmp_path / "tune.sqlite"
    fill(path)
    with closing(sqlite3.connect(path)) as db:
        db.executescript("PRAGMA user_version = 2; PRAGMA journal_mode = DELETE;")
    content = path.read_bytes()
    for _ in range(2):
        with TuneCache(tmp_path, notice=said.append) as cache:
            assert cache.path.name == "tune-schema1.sqlite"
            cache.add([record()])
            assert cache.stats().records == 1
    assert path.read_bytes() == content
    assert [("newer" in text, "tune.sqlite" in text) for text in said] == [(True, True)] * 2


def test_a_file_damaged_while_open_costs_its_records_only(
    cache: TuneCache, tmp_path: Path, said: list[str]
) -> None:
    fill(cache.path)
    cache._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with cache.path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\x5a" * (cache.path.stat().st_size - 4096))
    cache._db.execute("PRAGMA shrink_memory")
    assert cache.add([record()]) == 1
    assert cache.lookup(key()).tier is Tier.EXACT
    assert len(said) == 1
    assert cache.stats().aside


def test_a_file_set_aside_by_another_process_is_followed(cache: TuneCache, tmp_path: Path) -> None:
    cache.path.rename(tmp_path / "gone")
    cache.add([record()])
    with TuneCache(tmp_path) as other:
        assert other.stats().records == 1


def test_a_folder_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "tune.sqlite").mkdir()
    with pytest.raises(InputError, match=r"tune\.sqlite: is not a file"):
        TuneCache(tmp_path)


def test_a_damaged_row_is_passed_over_and_found_by_check(cache: TuneCache, said: list[str]) -> None:
    good, bad, worse = record(), record(ms=(1.5,)), record(ms=(1.75,))
    cache.add([good, bad, worse])
    cache._db.execute(
        "UPDATE record SET body = replace(body, '1.5', '0.1') WHERE id = ?", (bad.identity(),)
    )
    cache._db.execute("UPDATE record SET body = '{' WHERE id = ?", (worse.identity(),))
    assert [e.record for e in cache.lookup(key()).entries] == [good]
    assert len(said) == 2
    faults = {fault.identity: fault.reason for fault in cache.check()}
    assert set(faults) == {bad.identity(), worse.identity()}
    assert "hash" in faults[bad.identity()]
    assert cache.remove(damaged=faults) == 2
    assert cache.check() == []
    assert [e.record for e in cache.entries()] == [good]


def test_removal_by_age_keeps_what_it_is_told_to(cache: TuneCache) -> None:
    old, young = record(at="2026-01-01T00:00:00Z"), record(at="2026-11-01T00:00:00Z")
    foreign = record(of=key(STRANGER), at="2026-01-01T00:00:00Z")
    cache.add([old, young, foreign])

    def keep(one: object) -> bool:
        return one == foreign

    limit = "2026-06-01T00:00:00Z"
    assert cache.remove(before=limit, keep=keep, dry_run=True) == 1
    assert cache.stats().records == 3
    assert cache.remove(before=limit, keep=keep) == 1
    assert {e.record for e in cache.entries()} == {young, foreign}
    assert cache.remove() == 0


def test_removal_of_what_was_never_checked(cache: TuneCache) -> None:
    cache.add([record()])
    cache.add([record(ms=(9.0,))], verified=False)
    assert cache.remove(only_unverified=True) == 1
    assert [e.record for e in cache.entries()] == [record()]


def test_counts(cache: TuneCache) -> None:
    cache.add([record(), record(of=key(STRANGER, kernel="head")), record(outcome=Outcome.WRONG)])
    stats = cache.stats()
    assert (stats.records, stats.unverified, stats.keys) == (3, 0, 2)
    assert stats.outcomes == {"ok": 2, "wrong": 1}
    assert stats.kernels == {"head": 1, "step": 2}
    assert stats.devices == {"cpu x86_64 avx2": 1, "cpu x86_64 avx512vnni": 2}
