# SPDX-License-Identifier: GPL-2.0-only
"""The results file: a run writes it, report and compare read it.

The file is JSON with a format name and a version. After every few samples the whole file is written
under a temporary name and renamed, so that an interrupted (or killed) run keeps its measurements.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from . import stats
from .errors import BenchError
from .neighbours import disturbed
from .registry import METRICS

FORMAT = "mgloop-bench"
VERSION = 1


@dataclass
class Results:
    """All results of a run."""

    machine: dict
    settings: dict
    subjects: list[dict]
    reference: str
    workloads: list[dict]
    missing: dict[str, str] = field(default_factory=dict)
    samples: list[dict] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    interrupted: bool = False
    created: str = field(
        default_factory=lambda: datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )

    def to_json(self) -> dict:
        """Return the results in the file's format."""
        return {"format": FORMAT, "version": VERSION, **vars(self)}

    @classmethod
    def from_json(cls, data: object, where: str = "the file") -> Results:
        """Return the results in *data*. BenchError if this version does not understand it."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise BenchError(f"{where} is not a results file of this benchmark")
        if data.get("version") != VERSION:
            raise BenchError(
                f"{where} is a results file of version {data.get('version')}, "
                f"and this is version {VERSION}: measure again"
            )
        fields = {k: v for k, v in data.items() if k not in ("format", "version")}
        try:
            return cls(**fields)
        except TypeError as exc:
            raise BenchError(f"{where} is damaged: {exc}") from exc

    def text(self) -> str:
        """Return the file's content, one line per sample, which is short and easy to compare."""
        data = {key: value for key, value in self.to_json().items() if key != "samples"}
        head = json.dumps(data, indent=1).rstrip("}").rstrip()
        lines = ",\n".join("  " + json.dumps(_rounded(sample)) for sample in self.samples)
        return f'{head},\n "samples": [\n{lines}\n ]\n}}\n'

    def save(self, path: str | os.PathLike) -> None:
        """Write to *path* atomically. BenchError if that is impossible."""
        target = Path(path)
        partial = target.with_name(target.name + ".part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(self.text())
            os.replace(partial, target)
        except OSError as exc:
            raise BenchError(f"cannot write {path}: {exc.strerror}") from exc

    # Queries of report and compare.

    def workload(self, name: str) -> dict:
        """Return the description of the workload *name*."""
        return next(w for w in self.workloads if w["name"] == name)

    def reference_of(self, workload: dict) -> str:
        """Return the reference of this workload's ratios."""
        return workload.get("reference") or self.reference

    def values(self, workload: str, subject: str) -> dict[int, float]:
        """Return round -> value of good samples; disturbed ones only if too few others exist."""
        good = self._good(workload, subject)
        return {number: good[number]["value"] for number in _calm(good)}

    def _good(self, workload: str, subject: str) -> dict[int, dict]:
        return {
            s["round"]: s
            for s in self.samples
            if s["workload"] == workload
            and s["subject"] == subject
            and s["status"] == "ok"
            and s.get("value") is not None
        }

    def of(self, workload: str, subject: str) -> list[dict]:
        """Return the samples of one cell of the table."""
        return [s for s in self.samples if s["workload"] == workload and s["subject"] == subject]

    def subjects_of(self, workload: str) -> list[str]:
        """Return the subjects tried at *workload*, in the order of the table's columns."""
        seen = {s["subject"] for s in self.samples if s["workload"] == workload}
        return [s["name"] for s in self.subjects if s["name"] in seen]

    def ratios(self, workload: str, subject: str) -> list[float]:
        """Return paired ratios to the workload's reference; more is better.

        Disturbed pairs count only if too few others exist.
        """
        described = self.workload(workload)
        reference = self._good(workload, self.reference_of(described))
        own = self._good(workload, subject)
        numbers = _calm(reference, own)
        return stats.paired_ratios(
            {number: reference[number]["value"] for number in numbers},
            {number: own[number]["value"] for number in numbers},
            lower_is_better=METRICS[described["metric"]][2],
        )

    def controls(self) -> dict[str, str]:
        """Return control -> the reference that it repeats; loops and servers have one each."""
        return {s["name"]: s["control_of"] for s in self.subjects if s.get("control_of")}

    def control_at(self, workload: str) -> str | None:
        """Return the control that took part in *workload*, or None."""
        controls = self.controls()
        return next((name for name in self.subjects_of(workload) if name in controls), None)

    def noise(self, workload: str) -> float:
        """Return the band within which a ratio of *workload* means nothing."""
        name = self.control_at(workload)
        if name is None:
            return stats.NOISE_FLOOR
        suite = self.workload(workload)["suite"]
        spreads = [
            stats.spread(ratios)
            for w in self.workloads
            if w["suite"] == suite and (ratios := self.ratios(w["name"], name))
        ]
        return stats.noise(self.ratios(workload, name), spreads)

    def measured(self) -> Iterable[dict]:
        """Return the workloads that have at least one sample."""
        seen = {s["workload"] for s in self.samples}
        return [w for w in self.workloads if w["name"] in seen]


def _calm(*cells: dict[int, dict]) -> list[int]:
    """Return the rounds that all *cells* have, without disturbed ones if enough others remain."""
    common = sorted(set.intersection(*map(set, cells)))
    calm = [number for number in common if not any(disturbed(cell[number]) for cell in cells)]
    return calm if len(calm) >= stats.MIN_ROUNDS else common


def _rounded(value: object) -> object:
    """Round numbers to six digits, which is more than the precision of any measurement."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return value


def load(path: str) -> Results:
    """Read a results file. BenchError with one sentence if it cannot be used."""
    try:
        text = Path(path).read_text()
    except OSError as exc:
        raise BenchError(f"cannot read {path}: {exc.strerror}") from exc
    try:
        data = json.loads(text)
    except ValueError as exc:
        raise BenchError(f"{path} is not JSON: {exc}") from exc
    return Results.from_json(data, path)
