"""Looking after a cache folder: what a power cut, a broken index or an older layout left behind.

The only functions that list the folder. Everything else in the disk tier goes by the index alone.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from g2c_serving.schedule.block_files import LAYOUT, BlockFiles
from g2c_serving.schedule.disk_index import INDEX
from g2c_serving.schedule.disk_store import DiskStore

SWEEP_SECONDS = 86_400.0


def layouts(folder: Path) -> list[Path]:
    """The caches in a folder, one for each version of the layout that ever wrote there."""
    found = folder.glob("v*")
    return sorted(p for p in found if (p / INDEX).exists() or any(p.glob("*.kv")))


def other_layouts(folder: Path) -> list[Path]:
    return [path for path in layouts(folder) if path.name != f"v{LAYOUT}"]


def sweep(store: DiskStore, now: float) -> None:
    """Once a day: remove files without a row and rows without a file."""
    index, files = store.index, store.files
    if abs(now - index.swept()) < SWEEP_SECONDS:
        return
    with index.transaction():
        rows = {files.path(h, owner).name: (h, owner) for h, owner in index.rows()}
        names = files.names()
        files.delete(names - rows.keys())
        index.forget(h for name, (h, owner) in rows.items() if owner is None and name not in names)
        index.set_swept(now)


def clear(store: DiskStore) -> int:
    """Remove all rows and all files; the number of whole blocks. An index that is damaged even
    when it is empty is an error."""
    with store.index.transaction():
        removed = store.files.delete(store.files.names())  # first: on a full disk it makes room
        store.index.forget([h for h, _ in store.index.rows()])
        store.index.check()
    return _whole(removed)


def demolish(folder: Path) -> int:
    """Remove a cache with its index, one that cannot be read or is of another layout; the number
    of whole blocks. Only names such as ours are touched, so that a wrong folder loses nothing."""
    files = BlockFiles(folder)
    index_names = {path.name for path in folder.glob(f"{INDEX}*")}
    removed = files.delete(files.names() | index_names)
    with suppress(OSError):  # somebody's own file is in it
        folder.rmdir()
    return _whole(removed)


def _whole(names: list[str]) -> int:
    return sum(name.endswith(".kv") for name in names)
