"""Notebooks read, and run in kernels of their own; what Ctrl+C does to them, and how one fails."""

from __future__ import annotations

import asyncio
import copy
import os
import tempfile
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeVar

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from g2c_serving.paths import CACHE_VARIABLE, NOTEBOOKS

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
TIMEOUT_S = 600
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

T = TypeVar("T")


def read(path: Path) -> NotebookNode:
    """The notebook in a file. ValueError where the file holds none."""
    content = path.read_bytes()
    try:
        notebook = nbformat.reads(content.decode("utf-8"), as_version=4)
        if all(cell.id for cell in notebook.cells):
            return notebook
        raise ValueError("a cell without an id")
    except Exception as error:  # nbformat has many, a bare AttributeError among them
        raise ValueError(
            "the file is empty, or no notebook of format 4.5 or later; save it again from "
            "JupyterLab, or get it anew"
        ) from error


def failure(error: Exception) -> tuple[str, list[str]]:
    """Why one notebook failed, in a sentence, and what its cell said, as lines."""
    if isinstance(error, CellExecutionError):
        return "a cell failed; nothing was written", str(error).split("\n")
    if isinstance(error, CellTimeoutError):
        return f"a cell took longer than {TIMEOUT_S} s; nothing was written", []
    if isinstance(error, DeadKernelError):
        return "its kernel died; nothing was written", []
    if isinstance(error, ValueError | OSError):
        return f"failed: {error}", []
    return f"failed: {type(error).__name__}: {error}", []


async def executed(
    notebook: NotebookNode, folder: Path = NOTEBOOKS, alone: bool = True
) -> NotebookNode:
    """A copy of the notebook, run in a new kernel from its first cell, working in `folder`. Not
    `alone`, its kernel leaves to others what they share: it has one thread, and a KV cache folder
    of its own.

    Raises nbclient's CellExecutionError for the first cell that fails, CellTimeoutError for one
    that takes longer than TIMEOUT_S, and DeadKernelError where the kernel ends in the middle.
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
