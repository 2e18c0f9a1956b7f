"""What every benchmark's run needs: one thread, and a word of how far it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """torch computes in one thread; as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def progress(what: str) -> None:
    """A line beside the results, so that redirected results stay clean."""
    print(f"bench: {what}", file=sys.stderr, flush=True)
