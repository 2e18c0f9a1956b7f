"""Results of simulations that take longer than a move of a slider, kept in data/simulated/.

Each file holds a simulation's numbers for every setting of its panel's controls, one array axis a
control, the last axis the seeds. The module that simulates writes it; a test simulates a few of the
settings again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np

from g2c_serving.paths import DATA

FOLDER = DATA / "simulated"


def save(name: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write data/simulated/`name`.npz."""
    FOLDER.mkdir(exist_ok=True)
    np.savez_compressed(FOLDER / f"{name}.npz", **dict(arrays))  # type: ignore[arg-type]


@cache
def load(name: str) -> dict[str, np.ndarray]:
    """What `save` has written."""
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


def margin(seeds: np.ndarray) -> np.ndarray:
    """Two standard errors of the mean over seeds, the last axis (..., S) -> (...)."""
    return 2 * seeds.std(-1, ddof=1) / np.sqrt(seeds.shape[-1])


def plus_minus(seeds: np.ndarray, form: str = ".2f", scale: float = 1) -> str:
    """Mean and margin of seeds (S,), times `scale`, as words; `form` is the mean's."""
    return f"{scale * seeds.mean():{form}} \u00b1 {scale * margin(seeds):{form.lstrip('+')}}"
