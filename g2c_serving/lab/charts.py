"""The two charts that DeepInfer published, as far as they can be read, and what follows from them.

Brief, section 1. The speeds and ratios are read off the charts (Derived, so approximate) and live
in data/figures.csv; everything else here is arithmetic on them. The decode chart does not show
measured tokens: it multiplies measured steps per second by an assumed number of tokens per step.
"""

from __future__ import annotations

from dataclasses import dataclass

from g2c_serving.lab.published import value

DECODE_REQUESTS = (8, 64, 256)  # requests per GPU at the three points that the Brief reads off
CHART_DRAFTS = 3  # draft tokens per request and step, printed in the chart's subtitle
CHART_ACCEPTANCE = 0.75  # the average share of them that it assumes to be accepted
CHART_TOKENS = 1 + CHART_DRAFTS * CHART_ACCEPTANCE  # of a request per step


@dataclass(frozen=True)
class DecodePoint:
    """One point of the decode chart. Times in ms, speeds in tokens per second."""

    requests: int
    user_speed: float
    step_ms: float
    throughput: float


def decode_point(requests: int) -> DecodePoint:
    """The point at 8, 64 or 256 requests per GPU. Raises ValueError for any other."""
    if requests not in DECODE_REQUESTS:
        raise ValueError(f"requests {requests}: the chart was read at {DECODE_REQUESTS} only")
    speed = value(f"decode.user_speed.{requests}")
    return DecodePoint(requests, speed, 1000 * CHART_TOKENS / speed, requests * speed)


def decode_points() -> list[DecodePoint]:
    """The three points, fewest requests first."""
    return [decode_point(requests) for requests in DECODE_REQUESTS]


def step_ms_at(requests: int) -> float:
    return decode_point(requests).step_ms


def throughput_at(requests: int) -> float:
    return decode_point(requests).throughput


def throughput_gain(few: int, many: int) -> float:
    """How many times more tokens per second a GPU gives at `many` requests than at `few`."""
    return decode_point(many).throughput / decode_point(few).throughput


def step_slowdown(few: int, many: int) -> float:
    """How many times longer a step takes at `many` requests than at `few`."""
    return decode_point(many).step_ms / decode_point(few).step_ms


def marginal_ms(few: int, many: int) -> float:
    """What one more request adds to a step, in ms, on average between two points."""
    return (decode_point(many).step_ms - decode_point(few).step_ms) / (many - few)


def prefill_latency_ratio() -> float:
    """Last point of the prefill chart to the first: tokens per step over throughput."""
    return value("prefill.tokens_ratio") / value("prefill.throughput_ratio")
