"""What can go wrong with a folder and its index, and what to do about each: for messages."""

from __future__ import annotations

import errno
import sqlite3

CLEAR = "`python -m g2c_serving cache clear --dir {folder}` removes them"
RAISE = "raise EngineConfig.cache_bytes"
_ANEW = "`python -m g2c_serving cache clear --dir {folder}` starts it anew"
_SPACE = "free some space, or lower EngineConfig.cache_bytes"
_MEMORY = "end other programs, or lower EngineConfig.num_blocks"
_PLACE = "give EngineConfig.cache_dir a folder on this machine that you may write to"
_ALONE = "end the other process, or give this one a folder of its own"

_NO_SPACE = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))  # the disk is full; a quota
_BROKEN = ("SQLITE_NOTADB", "SQLITE_CORRUPT", "SQLITE_ERROR")  # the file is no index of ours
_PASSING = ("SQLITE_BUSY", "SQLITE_FULL", "SQLITE_IOERR")
_NONSENSE = (ValueError, TypeError, OverflowError)  # what Python makes of a damaged row
_REMEDIES = {"SQLITE_BUSY": _ALONE, "SQLITE_FULL": _SPACE, **dict.fromkeys(_BROKEN, _ANEW)}

FAULTS = (OSError, sqlite3.Error, MemoryError, *_NONSENSE)


def is_broken(fault: Exception) -> bool:
    """Whether it is the index file itself, so that only a new one helps."""
    elsewhere = isinstance(fault, OSError | MemoryError) or _errorname(fault).startswith(_PASSING)
    return not elsewhere


def fault_and_remedy(fault: Exception) -> tuple[str, str]:
    """One of `FAULTS` in words that are the same each time, and its remedy."""
    if isinstance(fault, OSError):
        return fault.strerror or str(fault), _SPACE if fault.errno in _NO_SPACE else _PLACE
    if isinstance(fault, MemoryError):
        return "no memory for its blocks", _MEMORY
    if isinstance(fault, _NONSENSE):
        return "its index is damaged", _ANEW
    known = [do for prefix, do in _REMEDIES.items() if _errorname(fault).startswith(prefix)]
    return f"its index: {fault}", known[0] if known else _PLACE


def _errorname(fault: Exception) -> str:
    """Such as SQLITE_BUSY, or SQLITE_BUSY_RECOVERY; empty where it is not SQLite's."""
    return getattr(fault, "sqlite_errorname", "")
