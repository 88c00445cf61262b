"""Experiments: items that differ only in method, fold and seed, with one comparison per clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pydantic import JsonValue

from relief_ray.data.registry import get_spec
from relief_ray.plugins.load import is_path
from relief_ray.records.schema import RunRecord
from relief_ray.report.comparison import Comparison, compare_runs, flat_setting, renamed
from relief_ray.report.inventory import GridItem, Inventory, choice_kind, searched_keys
from relief_ray.report.paper import PAPER_DATA
from relief_ray.report.runs import Loaded, config_int, config_text, config_value, has_folds, run_value, split_name
from relief_ray.support.errors import UserError, counted, listed

HEADLINE_CLOCK = "flop_proportional"
BACKBONES = {"cnn": "Backbone 1 (CNN)", "moment_lora": "Backbone 2 (MOMENT + LoRA)"}
_CHOICES = {"tuned": "every method tuned", "try": "search"}
_PRETTY = {"pamap2": "PAMAP2", "mhealth": "MHEALTH", "dsa": "DSA", "dsa_mini": "DSA excerpt"}
# Keys that the title or every caption names.
_NAMED = ("data.name", "data.split", "backbone.", "fleet.gap", "data.num_clients", "engine", "data origin", "choice")
# Values under which a deviation from the paper is computed, where the configuration has the key.
SAME = {
    "fleet.preset": "paper", "fleet.coupling": "coupled", "fleet.counts": "", "fleet.owned": "{}", "fleet.types": "{}",
    "training.lr": "0.001", "training.batch_size": "32", "data.window_s": "", "data.partition": "subject",
}  # fmt: skip
USUAL_FLEET = {"fleet.gap": "55", "data.num_clients": "", "fleet.num_clients": ""}


def settings_rows(runs: Sequence[Loaded]) -> list[list[str]]:
    """Settings, machine and versions of the runs: rows of words."""
    machines = distinct(
        f"{r.run.machine.cpu}, {counted(r.run.machine.num_cores, 'core')}, "
        f"{counted(r.run.machine.num_threads, 'thread')} per run"
        for r in runs
    )
    versions = distinct(
        f"relief-ray {r.run.code_version} (sources {r.run.source_digest[:12]}), Python {r.run.machine.python}, "
        f"torch {r.run.machine.torch}, numpy {r.run.machine.numpy}"
        for r in runs
    )
    numbers = [n for r in runs if (n := run_value(r.run, "replicate")) is not None]
    with_folds = any(has_folds(r.run.config) for r in runs)
    fleets = [len(clients) for r in runs if isinstance(clients := r.run.coverage.get("clients"), list)]
    return [
        ["data", distinct(f"{data_title(r.run)} ({r.run.data_origin})" for r in runs)],
        ["splits", distinct(split_name(config_text(r.run, "data.split")) for r in runs)],
        *([["folds", distinct(r.replicate[0] for r in runs if has_folds(r.run.config))]] if with_folds else []),
        *([["replicates", distinct(numbers)]] if numbers else []),
        ["seeds", distinct(r.replicate[2] for r in runs)],
        ["methods", distinct(f"`{r.label}`" for r in runs)],
        ["rounds R", distinct(r.planned for r in runs)],
        ["local epochs E", distinct(config_int(r.run, "training.epochs") for r in runs)],
        ["optimizer", distinct(map(_optimizer, runs))],
        *([["clients", distinct(fleets)]] if fleets else []),
        ["window stride", distinct(f"{config_text(r.run, 'data.stride_s')} s" for r in runs)],
        ["missing modality", distinct(config_text(r.run, "training.missing") for r in runs)],
        ["rounds between evaluations", distinct(config_text(r.run, "evaluation.every") for r in runs)],
        ["engine", distinct(f"{r.run.engine}, planned by `{r.run.planning_model}`" for r in runs)],
        ["machine", machines],
        ["versions", versions],
        ["computed", _computed(runs)],
    ]


def _optimizer(loaded: Loaded) -> str:
    """``adam, learning rate 0.001, batch 32``."""
    parts = (("", "optimizer"), ("learning rate ", "lr"), ("batch ", "batch_size"))
    known = ((name, config_text(loaded.run, f"training.{key}")) for name, key in parts)
    return ", ".join(name + value for name, value in known if value)


def _computed(runs: Sequence[Loaded]) -> str:
    """``36 runs, 132 rounds, 2.9 h of process time``."""
    seconds = sum(record.wall_s for r in runs for record in r.rounds)
    rounds = counted(sum(len(r.rounds) for r in runs), "round")
    return f"{counted(len(runs), 'run')}, {rounds}, {_duration(seconds)} of process time"


def _duration(seconds: float) -> str:
    """A time in its usual unit: ``4.2 s``, ``3.5 min``, ``2.9 h``."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def data_title(run: RunRecord) -> str:
    """The data set of a run as a title names it: of a user's own, whose name is an import path, by its own title."""
    name = config_text(run, "data.name")
    return (is_path(name) and run.data_title) or _short_name(name)


def _short_name(name: str) -> str:
    """The short name of a data set or a backbone of the configuration; of an import path, the last part."""
    return _PRETTY.get(name) or name.rpartition(":")[2]


def distinct(values: Iterable[object]) -> str:
    """Different values in order of appearance: ``1, 2 and 3``."""
    return listed(dict.fromkeys(str(v) for v in values))


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All items of one setting.

    Attributes:
        items: planned and existing runs.
        differs: keys beside data and backbone in which it differs from the report's other settings, with its values.
        searched: keys in which runs that a search chose may differ from method to method.
    """

    items: tuple[GridItem, ...]
    differs: Mapping[str, str]
    searched: tuple[str, ...] = ()

    @cached_property
    def runs(self) -> tuple[Loaded, ...]:
        """The runs that count, under their cells' names."""
        return tuple(renamed(s.loaded, s.label) for s in self.items if s.status == "done" and s.loaded is not None)

    @cached_property
    def comparisons(self) -> Mapping[str, Comparison]:
        """One comparison per clock that every run recorded; none where no run counts."""
        known = [set(r.rounds[-1].costs) for r in self.runs]
        clocks = [c for c in self.runs[0].rounds[-1].costs if all(c in k for k in known)] if known else []
        again = tuple(renamed(r, s.label) for s in self.items for r in s.repeats)
        return {clock: compare_runs((*self.runs, *again), clock, self.searched) for clock in clocks}

    @property
    def main(self) -> Comparison | None:
        """The comparison by the clock that the allocator planned with."""
        return self.comparisons.get(self.runs[0].run.planning_model) if self.runs else None

    @property
    def by_paper(self) -> Comparison | None:
        """The comparison by the headline clock, in proportion to the trained groups' FLOPs."""
        return self.comparisons.get(HEADLINE_CLOCK)

    @property
    def shown(self) -> Comparison | None:
        """Comparison beside the paper's figures: by its clock where the runs have it, else by the planner's."""
        return self.by_paper or self.main

    def text(self, path: str) -> str:
        """A value of the configuration."""
        value = config_value(self.items[0].config, path)
        return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

    @property
    def dataset(self) -> str:
        """Its name in configurations."""
        return self.text("data.name")

    @property
    def data_title(self) -> str:
        """The data set as titles name it."""
        return data_title(self.runs[0].run) if self.runs else _short_name(self.dataset)

    @property
    def is_own_data(self) -> bool:
        """True for a user's data set: the paper says nothing about it."""
        return is_path(self.dataset)

    @property
    def is_on_papers_data(self) -> bool:
        """True for a data set of the paper, whose figures then stand under ours."""
        return self.dataset in PAPER_DATA

    @property
    def paper_data(self) -> str:
        """The paper's data set that stands beside ours: the same one, or PAMAP2."""
        return PAPER_DATA.get(self.dataset, "PAMAP2")

    @property
    def backbone(self) -> str:
        """Its name in configurations."""
        return self.text("backbone.name") or "cnn"

    @property
    def gap(self) -> float:
        """Type A's speed over Type C's."""
        return float(self.text("fleet.gap") or 55.0)

    @property
    def num_clients(self) -> int:
        """Clients of the fleet: one per subject unless the configuration says otherwise."""
        for path in ("data.num_clients", "fleet.num_clients"):
            if self.text(path):
                return int(self.text(path))
        return self._num_subjects

    @property
    def _num_subjects(self) -> int:
        """One client per subject of the training part; 0 where nothing is known."""
        rows = self.runs[0].run.coverage.get("clients") if self.runs else None
        if isinstance(rows, list) and rows and not self.text("data.num_clients"):
            return len(rows)
        try:
            return sum(get_spec(self.dataset).type_counts)
        except UserError:
            return 0

    @property
    def is_real(self) -> bool:
        """True where no run used synthetic data."""
        return all(r.run.data_origin == "real" for r in self.runs)

    @property
    def choice(self) -> str:
        """``tuned``: each method with the values that its search chose; ``try``: the tries of a search; else empty."""
        return choice_kind(self.items[0].config)

    def base(self, chosen: Iterable[str]) -> str:
        """The setting without the search and the values that it chose: equal for tuned and usual cells."""
        left_out = {"choice", *chosen}
        return repr({k: v for k, v in flat_setting(self.items[0].config).items() if k not in left_out})

    @property
    def is_drawn(self) -> bool:
        """True for gap 55 and a client per subject: the settings of which figures are drawn."""
        return self.gap == 55.0 and not self.text("data.num_clients")

    @property
    def is_two_boards(self) -> bool:
        """True for the paper's per-device runs: one client of Type A, one of Type C."""
        return config_value(self.items[0].config, "fleet.counts") in ([1, 0, 1], (1, 0, 1))

    @property
    def title(self) -> str:
        """Data, split, backbone, and the other values that set it apart."""
        parts = [self.data_title, split_name(self.text("data.split"))]
        parts += [BACKBONES.get(self.backbone) or _short_name(self.backbone)]
        parts += [f"gap {self.gap:g}"] if self.gap != 55.0 else []
        parts += [f"N = {self.text('data.num_clients')}"] if self.text("data.num_clients") else []
        parts += [_CHOICES[self.choice]] if self.choice in _CHOICES else []
        is_testbed = self.text("fleet.preset") == "testbed"
        parts += ["testbed, two devices" if self.is_two_boards else "testbed, fleet"] if is_testbed else []
        parts += [f"{k} = {v}" for k, v in self.differs.items() if not (is_testbed and k in ("preset", "counts"))]
        return ("" if self.is_real else "SYNTHETIC data: ") + ", ".join(p for p in parts if p)

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """``digests_of`` its runs."""
        return digests_of(self.runs)

    def of_other_code(self, label: str) -> int:
        """Number of a method's runs that another program computed than most runs of the experiment."""
        return sum(r.label == label and r.run.source_digest != self.digests[0] for r in self.compared)

    @property
    def compared(self) -> tuple[Loaded, ...]:
        """The runs as the comparison labels them."""
        return self.main.runs if self.main is not None else ()


def digests_of(runs: Sequence[Loaded]) -> tuple[str, ...]:
    """Source digests of the runs' programs, the commonest first."""
    return tuple(digest for digest, _ in Counter(r.run.source_digest for r in runs).most_common())


def experiments(inventory: Inventory) -> tuple[Experiment, ...]:
    """All cells, by setting; planned cells join the runs of the same setting, whatever those ran on."""
    searched = searched_keys(item.config for item in inventory.items)
    known = [(item, flat_setting(item.config, searched)) for item in inventory.items if item.config]
    places: dict[str, tuple[str, str]] = {}
    for item, setting in known:
        if item.loaded is not None:
            places.setdefault(repr(setting), _place(item.loaded))
    groups: dict[str, list[tuple[GridItem, dict[str, JsonValue]]]] = {}
    for item, setting in known:
        place = places.get(repr(setting), ("", "")) if item.loaded is None else _place(item.loaded)
        groups.setdefault(repr((setting, place)), []).append((item, setting))
    settings = [group[0][1] for group in groups.values()]
    return tuple(
        Experiment(
            items=tuple(item for item, _ in group),
            differs=differences(mine, settings),
            searched=searched if "choice" in mine else (),
        )
        for group, mine in zip(groups.values(), settings, strict=True)
    )


def _place(loaded: Loaded) -> tuple[str, str]:
    return loaded.run.data_origin, loaded.run.engine


def differences(mine: Mapping[str, JsonValue], others: Sequence[Mapping[str, JsonValue]]) -> dict[str, str]:
    """The keys in which settings vary, beside those that every title names, with ``mine``'s values.

    Empty values are left out: that the others' are not is in their titles.
    """
    keys = dict.fromkeys(k for other in (mine, *others) for k in other)
    varied = [k for k in keys if _is_varied(k, others) and not k.startswith(_NAMED)]
    return {k.rpartition(".")[2]: _shown(mine.get(k)) for k in varied if mine.get(k) not in (None, "", [], (), {})}


def _is_varied(key: str, settings: Sequence[Mapping[str, JsonValue]]) -> bool:
    """True where values differ; a setting of tuned cells lacks what the search chose, which is no difference."""
    return len({repr(s.get(key)) for s in settings if key in s or "choice" not in s}) > 1


def _shown(value: JsonValue) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(str, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)
