"""Notebooks run in kernels of their own, and what Ctrl+C does to them."""

from __future__ import annotations

import asyncio
import copy
import os
import tempfile
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

from nbclient import NotebookClient
from nbformat import NotebookNode

from g2c_serving.paths import CACHE_VARIABLE, NOTEBOOKS

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
TIMEOUT_S = 600
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

T = TypeVar("T")


async def executed(
    notebook: NotebookNode, folder: Path = NOTEBOOKS, alone: bool = True
) -> NotebookNode:
    """A copy of the notebook, run in a new kernel from its first cell, working in `folder`. Not
    `alone`, its kernel leaves to others what they share: it has one thread, and a KV cache folder
    of its own.

    Raises nbclient's CellExecutionError for the first cell that fails.
    """
    done = copy.deepcopy(notebook)
    done.metadata["kernelspec"] = dict(KERNEL)
    client: NotebookClient = NotebookClient(
        done,
        timeout=TIMEOUT_S,
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
        # given up in the middle of a cell, it gets no time to answer a client that has gone
        on_notebook_error=lambda **_: setattr(client, "shutdown_kernel", "immediate"),
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        apart = {CACHE_VARIABLE: cache, **dict.fromkeys(THREADS, "1")}
        await client.async_execute(env={**os.environ, **({} if alone else apart)})
    return done


def stoppable(work: Coroutine[Any, Any, T]) -> T:
    """Do the work in another thread: in the main one nbclient takes Ctrl+C for itself, and ends one
    kernel of several. Here Ctrl+C cancels it all, and goes on once every kernel has ended."""
    cancels: list[Callable[[], Any]] = []

    async def noted() -> T:
        task, loop = asyncio.ensure_future(work), asyncio.get_running_loop()
        cancels.append(lambda: loop.call_soon_threadsafe(task.cancel))
        return await task

    with ThreadPoolExecutor(1) as thread:
        job = thread.submit(asyncio.run, noted())
        try:
            while not job.done():
                wait([job], timeout=0.2)  # without a timeout Windows would hold Ctrl+C back
        except KeyboardInterrupt:
            for cancel in cancels:
                cancel()
            raise
        return job.result()
