# SPDX-License-Identifier: GPL-2.0-only
"""The arithmetic of the benchmarks: medians, paired ratios, noise, verdicts.

Pure functions on numbers, tested on known input. A ratio is always written so that more is
better: the reference's cost over the subject's cost, or the subject's rate over the reference's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Smaller differences are never reported, however quiet the control was.
NOISE_FLOOR = 0.02
# The minimum number of rounds for a verdict of better or worse.
MIN_ROUNDS = 3


@dataclass(frozen=True)
class Summary:
    """A median with the extremes and the number of rounds."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Summary | None:
        """Return the summary of *values*; None if *values* is empty."""
        ordered = sorted(values)
        if not ordered:
            return None
        return cls(median(ordered), ordered[0], ordered[-1], len(ordered))


def median(values: Iterable[float]) -> float:
    """Return the median of *values*: the mean of the middle two if even. ValueError if empty."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("median of no values")
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile of *values* (0 < percent <= 100). ValueError if empty."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("percentile of no values")
    rank = max(1, math.ceil(percent / 100 * len(ordered)))
    return ordered[rank - 1]


def paired_ratios(
    reference: Mapping[int, float], subject: Mapping[int, float], *, lower_is_better: bool
) -> list[float]:
    """Return the ratios of the rounds that both have; more is better.

    *reference* and *subject* map a round's number to its value; rounds with a value that is not
    positive are skipped. Pairing within the round cancels drift from round to round, such as that
    of clock speed, temperature and other load.
    """
    ratios = []
    for number in sorted(reference.keys() & subject.keys()):
        ref, own = reference[number], subject[number]
        if ref > 0 and own > 0:
            ratios.append(ref / own if lower_is_better else own / ref)
    return ratios


def spread(ratios: Sequence[float]) -> float:
    """Return how far the ratios of equal subjects deviate from 1: the noise of a control.

    The result is the median deviation of the rounds from 1 or the deviation of their median,
    whichever is larger.
    """
    if not ratios:
        return 0.0
    typical = median(abs(r - 1) for r in ratios)
    return max(typical, abs(median(ratios) - 1))


def noise(own: Sequence[float], suite: Iterable[float] = ()) -> float:
    """Return the band within which a median ratio means nothing.

    *own* are the control's ratios in this workload, *suite* the spreads of the controls of every
    workload of the suite. With few rounds a control may be quiet by luck, which must not turn noise
    into a win. The suite's median spread is therefore one lower bound, and NOISE_FLOOR another.
    """
    others = list(suite)
    return max(NOISE_FLOOR, spread(own), median(others) if others else 0.0)


def verdict(ratios: Sequence[float], band: float) -> str:
    """Return ``faster``, ``slower``, ``same`` or ``unclear`` (fewer than MIN_ROUNDS ratios).

    Faster or slower needs the median outside the band *and* at least three quarters of the rounds
    on that side of 1, so that a single outlier cannot decide.
    """
    if len(ratios) < MIN_ROUNDS:
        return "unclear"
    middle = median(ratios)
    if middle > 1 + band and sum(r > 1 for r in ratios) >= 0.75 * len(ratios):
        return "faster"
    if middle < 1 - band and sum(r < 1 for r in ratios) >= 0.75 * len(ratios):
        return "slower"
    return "same"
