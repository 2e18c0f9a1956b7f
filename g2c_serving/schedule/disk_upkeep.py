"""Looking after a cache folder: what a power cut, a broken index or an older layout left behind.

The only functions that list the folder. Everything else in the disk tier goes by the index alone.
"""

from __future__ import annotations

from pathlib import Path

from g2c_serving.schedule.block_files import LAYOUT, BlockFiles
from g2c_serving.schedule.disk_index import INDEX
from g2c_serving.schedule.disk_store import DiskStore

SWEEP_SECONDS = 86_400.0


def layouts(folder: Path) -> list[Path]:
    """The caches in a folder, one for each version of the layout that ever wrote there."""
    return sorted(path.parent for path in folder.glob(f"v*/{INDEX}"))


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
    """Remove all rows and all files; the number of whole blocks."""
    with store.index.transaction():
        names = store.files.names()
        store.index.forget([h for h, _ in store.index.rows()])
        store.files.delete(names)
    return _whole(names)


def demolish(folder: Path) -> int:
    """Remove the files of a cache whose index nobody can read; the number of whole blocks. Only
    names such as ours are touched, so that a wrong folder loses nothing."""
    files = BlockFiles(folder)
    names = files.names()
    files.delete([*names, *(path.name for path in folder.glob(f"{INDEX}*"))])
    return _whole(names)


def _whole(names: set[str]) -> int:
    return sum(name.endswith(".kv") for name in names)
