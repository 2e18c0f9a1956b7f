"""A cache is shipped while it is computed: each layer's part leaves as soon as the layer is done.

    compute   | layer 1 | layer 2 | layer 3 | layer 4 |
    link                | 1  |    | 2  |    | 3  |    | 4  |      the last part is what shows

Prefill computes a prompt layer by layer, and a layer's keys and values are ready when it is. Sent
at once, all but the last part is hidden behind the computation, as long as the link is no slower
than that. Brief, "The parts that are pure infrastructure", Reported: "per-layer transfers
overlapped with computation", there between storage and GPU memory.

Simulated: n equal layers, a link that starts without delay and sends one prompt after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from g2c_serving.checks import as_int
from g2c_serving.virtual_clock import Lane, Number, Time, VirtualClock, as_duration


@dataclass(frozen=True)
class Shipment:
    """A prompt's prefill and its cache on the link: two lanes, with a span for each layer. ms."""

    compute: Lane
    link: Lane

    @property
    def computed(self) -> Time:
        """When the first token can be drawn."""
        return self.compute.free_at

    @property
    def arrived(self) -> Time:
        """When the decode machine has the whole cache."""
        return self.link.free_at

    @property
    def shown(self) -> Time:
        """ms from the first token until decoding can begin: what the shipping costs a user."""
        return self.arrived - self.computed


def ship(
    layers: int, compute_ms: Number, transfer_ms: Number, layer_by_layer: bool = True
) -> Shipment:
    """Prefill `layers` layers in `compute_ms`, and ship their cache, which takes the link
    `transfer_ms` in all: each layer when it is done, or everything at the end.

    ValueError for no layer or a negative time.
    """
    layers = as_int("layers", layers, 1)
    compute_part = Fraction(as_duration("compute_ms", compute_ms)) / layers
    transfer_part = Fraction(as_duration("transfer_ms", transfer_ms)) / layers
    clock = VirtualClock()
    compute, link = Lane(clock, "compute"), Lane(clock, "link")

    def prefill():
        for n in range(layers):
            yield compute.submit(compute_part, label=f"layer {n}")
            if layer_by_layer:
                link.submit(transfer_part, label=f"layer {n}")
        if not layer_by_layer:
            for n in range(layers):
                link.submit(transfer_part, label=f"layer {n}")

    clock.start(prefill())
    clock.run()
    return Shipment(compute, link)


def arrival_ms(
    layers: ArrayLike, began: ArrayLike, computed: ArrayLike, transfer_ms: ArrayLike,
    free_at: ArrayLike = 0.0,
) -> np.ndarray:  # fmt: skip
    """When the last layer's part has arrived of a prompt that is computed from `began` to
    `computed`, on a link that is busy with others until `free_at`; ms, arrays that broadcast.

    The link is busy from `free_at` on, or from the first layer on, or waits for the last layer.
    """
    n, b, c, x, f = (np.asarray(a, float) for a in (layers, began, computed, transfer_ms, free_at))
    return np.maximum(np.maximum(f, b + (c - b) / n) + x, c + x / n)


def shown_ms(layers: ArrayLike, compute_ms: ArrayLike, transfer_ms: ArrayLike) -> np.ndarray:
    """`Shipment.shown`, layer by layer, for many settings at once and without a clock: arrays that
    broadcast. The link is free from the start."""
    compute = np.asarray(compute_ms, float)
    return arrival_ms(layers, 0.0, compute, transfer_ms, -np.inf) - compute
