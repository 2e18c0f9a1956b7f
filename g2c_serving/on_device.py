"""Numbers of the host sent to the device, without waiting for what the device has yet to do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch


def on_device(
    numbers: np.ndarray | torch.Tensor | Sequence, device: str | torch.device
) -> torch.Tensor:
    """`numbers` as a tensor there, lists of them as int64. On a CPU it is the same memory, so they
    must stay as they are.

    On cuda a copy waits for its turn on the device unless it is asked not to; the numbers are taken
    over before it returns.
    """
    if isinstance(numbers, np.ndarray):
        numbers = torch.from_numpy(numbers)
    elif not isinstance(numbers, torch.Tensor):
        numbers = torch.tensor(numbers, dtype=torch.int64)
    return numbers.to(device, non_blocking=str(device).startswith("cuda"))
