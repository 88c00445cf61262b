"""Judges the rules that every dataset's loader keeps, on its own files: description, parsing, windows and splits.

A rule is judged by running the loader, never by reading it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from relief_ray.conformance.rules import Check, Rule, Rules, Verdict, judge
from relief_ray.data.checks import (
    FIXES,
    Violation,
    content_digest,
    in_words,
    spec_violations,
    structure,
    violations_of_all,
)
from relief_ray.data.config import DataConfig
from relief_ray.data.dataset import Dataset, expected_ends, locate, parse_subject, read_entry, store
from relief_ray.data.describe import cache_problems, without_windows
from relief_ray.data.federated_data import Coverage, federate, num_clients
from relief_ray.data.figures import measure
from relief_ray.data.leakage import leak
from relief_ray.data.loader import DatasetSpec, Loader, Recording, require_members
from relief_ray.data.partition import available
from relief_ray.data.source import Source, open_source
from relief_ray.support.errors import UserError, listed

DATA_RULES: Rules = {
    "description": Rule("the description agrees with itself", FIXES["description"]),
    "files": Rule(
        "every person's files are found, in one place",
        "set RELIEF_DATA to their folder; let files() name the ends of their paths, and `member` match them",
    ),
    "parses": Rule("parse() returns a Recording for every person", "mend the file or the line that is named"),
    "subjects": Rule("every person has data, and nobody has another's", FIXES["subjects"]),
    "labels": Rule("every code in the files is declared, and every declared class has rows", FIXES["labels"]),
    "channels": Rule("the signal has the channels that are declared", FIXES["channels"]),
    "rates": Rule("rates and lengths of activities fit each other", FIXES["rates"]),
    "finite": Rule("no value is NaN or infinite after parsing", FIXES["finite"]),
    "bouts": Rule("bouts are stretches of rows that do not overlap", FIXES["bouts"]),
    "constant": Rule(
        "no channel keeps one value for a whole person",
        "leave the channel out of modalities, or the person out of subjects, or read another column; where the "
        "person has no such sensor, say so in DatasetSpec.lacks",
    ),
    "repeats": Rule(
        "a second parse gives the same bits, and so does the cache",
        "use no clock, no random numbers and no order of a set; read files through members.read(name) alone",
    ),
    "place": Rule(
        "parsing does not depend on the working directory",
        "read files through members.read(name) alone, not with open() or a relative path",
    ),
    "windows": Rule(
        "training and test have windows of every class, training and validation some of every person",
        "record longer bouts, join what is unbroken into one bout, or set data.window_s or data.stride_s lower",
    ),
    "leakage": Rule(
        "no sample is in two parts of a split, not even a copy of it",
        "return every row once; rows that the files repeat belong to one bout of one person",
    ),
}

_RECORDED = ("subjects", "labels", "channels", "rates", "finite", "bouts")
_Violations = Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bench:
    """The loader under test and its results so far.

    Attributes:
        loader: the loader.
        values: settings of the data section, without the dataset's name.
        folder: for files of the judge's own.
        sources: its raw files, once they are found.
        recordings: its parsed subjects.
    """

    loader: Loader
    values: Mapping[str, object]
    folder: Path
    sources: list[Source] = field(default_factory=list)
    recordings: dict[int, Recording] = field(default_factory=dict)

    @property
    def spec(self) -> DatasetSpec:
        """The loader's description."""
        return self.loader.spec

    def parse(self) -> dict[int, Recording]:
        """All subjects, parsed anew."""
        (source,) = self.sources
        with open_source(self.spec, source) as members:
            return {s: parse_subject(self.loader, members, source.path, s) for s in self.spec.subjects}


def check_loader(loader: Loader, values: Mapping[str, object]) -> Iterator[Verdict]:
    """Judge the rules on a loader; ``values``: settings of the data section, for windows and splits."""
    with tempfile.TemporaryDirectory(prefix="relief-ray-") as folder:
        yield from judge(_CHECKS, _Bench(loader=loader, values=values, folder=Path(folder)))


def _description(bench: _Bench) -> _Violations:
    return _by_rule(spec_violations(bench.spec))


def _by_rule(violations: Sequence[Violation]) -> dict[str, str]:
    """The violations of each broken rule in one text."""
    return {
        rule: "; ".join(in_words(violation for violation in violations if violation.rule == rule))
        for rule in DATA_RULES
        if any(violation.rule == rule for violation in violations)
    }


def _files(bench: _Bench) -> None:
    source = locate(bench.loader)
    bench.sources.append(replace(source, path=source.path.absolute()))
    with open_source(bench.spec, source) as members:
        require_members(bench.spec, members.names, expected_ends(bench.loader), source.path)


def _parses(bench: _Bench) -> None:
    bench.recordings.update(bench.parse())


def _recordings(bench: _Bench) -> _Violations:
    spec, recordings = bench.spec, bench.recordings
    violations = violations_of_all(spec, recordings, refuse_absent_classes=True)
    # Where nothing contradicts it: lengths of activities and ranges of values that the description excludes.
    return _by_rule(violations or [one for recording in recordings.values() for one in structure(spec, recording)])


def _constant(bench: _Bench) -> _Violations:
    still: dict[tuple[str, int], list[int]] = {}
    for subject, recording in bench.recordings.items():
        for row in measure(bench.spec, recording):
            for column, _ in row["still"]:
                still.setdefault((row["sensor"], column), []).append(subject)
    texts = [f"{name}, column {column}, of subjects {listed(subjects)}" for (name, column), subjects in still.items()]
    return {"constant": f"one value in all rows: {'; '.join(texts)}"} if texts else {}


def _place(bench: _Bench) -> _Violations:
    """Parse anew in another working directory."""
    here = Path.cwd()
    os.chdir(bench.folder)
    try:
        return _repeats(bench, "place")
    finally:
        os.chdir(here)


def _repeats(bench: _Bench, rule: str = "repeats") -> _Violations:
    """Parse anew and compare with the first recordings."""
    before = bench.recordings
    other = [s for s, recording in bench.parse().items() if content_digest(recording) != content_digest(before[s])]
    return {rule: f"subjects {listed(other)} of {len(before)} have other bits"} if other else {}


def _kept(bench: _Bench) -> _Violations:
    """Parse anew, and compare the first recordings with what the cache has of these files."""
    kept = "; ".join(cache_problems(bench.spec, bench.sources[0], list(bench.recordings.values())))
    return _repeats(bench) or ({"repeats": kept} if kept else {})


def _windows(bench: _Bench) -> _Violations:
    """Count windows and look for samples in two parts, for the configured split and for held-out subjects."""
    source, spec = bench.sources[0], bench.spec
    store(spec, list(bench.recordings.values()), source, bench.folder / "parsed")
    try:
        configs = [DataConfig.model_validate({**bench.values, "name": spec.name})]
    except ValueError as error:
        raise UserError(str(error)) from error
    if configs[0].split == "within_subject" and len(configs[0].subject_ids()) > 2:
        configs.append(configs[0].model_copy(update={"split": "held_out_subject"}))
    violations: dict[str, str] = {}
    for config in configs:
        dataset = Dataset(**vars(read_entry(bench.folder / "parsed")), spec=config.spec(), source=source)
        for rule, text in _split(dataset, config).items():
            violations.setdefault(rule, text)
    return violations


def _split(dataset: Dataset, config: DataConfig) -> _Violations:
    """Violations by the windows and parts of one split."""
    try:
        data = federate(dataset, config, available(config, num_clients(dataset, config)))
    except UserError as error:
        return {"windows": str(error)}
    violations = {}
    if lacking := _lacking(data.coverage):
        violations["windows"] = f"data.split={config.split}: {lacking}"
    if shared := leak(config, data, dataset.signal()):
        violations["leakage"] = f"data.split={config.split}: {shared}"
    return violations


def _lacking(coverage: Coverage) -> str:
    texts = without_windows(coverage, coverage["classes"])
    if without := [c["client"] for c in coverage["clients"] if not sum(c["validation"])]:
        texts.append(f"no validation window of clients {listed(without)}")
    return "; ".join(texts)


# Values are read, for `finite`, where the arrays fit each other.
_CHECKS: tuple[Check[_Bench], ...] = (
    Check(rules=("description",), run=_description),
    Check(rules=("files",), run=_files, needs=("description",)),
    Check(rules=("parses",), run=_parses, needs=("files",)),
    Check(rules=_RECORDED, run=_recordings, needs=("parses",), apart=frozenset(_RECORDED) - {"finite"}),
    Check(rules=("constant",), run=_constant, needs=_RECORDED),
    Check(rules=("repeats",), run=_kept, needs=_RECORDED),
    Check(rules=("place",), run=_place, needs=("repeats",)),
    # An error here is one of the settings.
    Check(rules=("windows", "leakage"), run=_windows, needs=_RECORDED, lets_through=(UserError,)),
)
