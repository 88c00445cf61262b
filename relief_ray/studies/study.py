"""A study: all runs below a folder, as tables for pandas, pages, pictures, verdicts, runs; ``load`` opens one."""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from relief_ray.config.experiment import ExperimentConfig, parse, recorded_config
from relief_ray.experiment.setup import configured_fleet
from relief_ray.plugins.load import import_path, is_path
from relief_ray.records.run_folder import RUN_FILE
from relief_ray.records.schema import RoundRecord, RunRecord, Status
from relief_ray.report.build import FIGURES, build, command_of, default_place, write
from relief_ray.report.claims import ClaimResult, Registry, judge, last_lines, registry_of, verdict_table
from relief_ray.report.comparison import Comparison, by_setting
from relief_ray.report.figures.devices import allocation
from relief_ray.report.figures.progress import curves
from relief_ray.report.figures.style import save, sheet
from relief_ray.report.figures.timeline import featured, timeline
from relief_ray.report.formats import text
from relief_ray.report.frames import Cells, brief_settings, cells_of, gain, gain_frame, round_frame
from relief_ray.report.results import round_table
from relief_ray.report.runs import GridItem, Loaded, take_inventory
from relief_ray.report.statistics import Paired
from relief_ray.report.tables.methods import lead_table
from relief_ray.strategies import REFERENCE
from relief_ray.studies.reasons import Reasons, reasons_for, reasons_of
from relief_ray.studies.request import StrategyLike, method_of
from relief_ray.support.errors import UserError, counted, listed, nearest, shown
from relief_ray.support.files import write_atomic
from relief_ray.support.table import inline

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True)
class Page:
    """A result as text and tables: ``print`` gives text for a terminal, a notebook shows the Markdown.

    Attributes:
        text: for terminals.
        markdown: for notebooks and files.
    """

    text: str
    markdown: str

    def __repr__(self) -> str:
        """Return the text: what a Python prompt shows."""
        return self.text

    def _repr_markdown_(self) -> str:
        return self.markdown


@dataclass(frozen=True, slots=True, repr=False)
class Picture:
    """A drawn figure; a notebook shows it.

    Attributes:
        png: the file's bytes.
        caption: what it shows, in a line.
    """

    png: bytes
    caption: str = ""

    def save(self, path: str | Path) -> Path:
        """Write the picture as a PNG file and return its path.

        Raises:
            UserError: the file cannot be written.
        """
        place = Path(path)
        write_atomic(place, self.png)
        return place

    def __repr__(self) -> str:
        """Return what it is; the picture itself is in ``png``."""
        return f"<Picture, {len(self.png)} bytes of PNG{f': {self.caption}' if self.caption else ''}; .save(path)>"

    def _repr_mimebundle_(self, **options: object) -> tuple[dict[str, str], dict[str, object]]:
        encoded = b2a_base64(self.png, newline=False).decode()
        return {"image/png": encoded, "text/plain": repr(self)}, {"image/png": {"width": 760}}


def drawn(draw: Callable[[Path], object], caption: str) -> Picture:
    """Return the picture that ``draw`` writes to the PNG file it is given."""
    with TemporaryDirectory(prefix="relief-ray-") as folder:
        path = Path(folder) / "figure.png"
        draw(path)
        return Picture(png=path.read_bytes(), caption=caption)


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Verdicts(Page):
    """Verdicts on claims; printed, they are one sentence per setting, in a notebook also the table of claims.

    Attributes:
        sentences: one per setting with two methods or more, as `relief-ray compare` ends with.
        claims: every judged claim with its verdict, evidence and adjusted p.
    """

    sentences: tuple[str, ...]
    claims: tuple[ClaimResult, ...]


def judged(settings: Sequence[Comparison], registry: Registry) -> Verdicts:
    """Judge the claims of a registry over the runs of these settings."""
    judgements, problems = judge(settings, registry)
    sentences, parts = [], []
    for comparison, judgement in zip(settings, judgements, strict=True):
        if len(comparison.rows) < 2:
            continue
        sentence = " ".join(last_lines(comparison, judgement, problems))
        title = f"**{comparison.title}.** " if len(settings) > 1 else ""
        sentences.append(f"{comparison.title}: {sentence}" if len(settings) > 1 else sentence)
        parts.append(title + sentence)
        parts += [] if judgement is None else [verdict_table(judgement).markdown()]
    claims = tuple(claim for judgement in judgements if judgement is not None for claim in judgement.claims)
    plain = "\n".join(sentences) or "One method alone: there is nothing to compare."
    return Verdicts(text=plain, markdown="\n\n".join(parts) or plain, sentences=tuple(sentences), claims=claims)


def _by(comparison: Comparison, clock: str | None) -> Comparison:
    """The comparison by a clock; None: the one that the allocator planned with.

    Raises:
        UserError: the clock was not recorded.
    """
    if clock is None:
        return comparison
    if clock not in comparison.clocks:
        raise UserError(f"clock {clock!r}: not recorded by every run; recorded are {', '.join(comparison.clocks)}")
    return comparison.by(clock)


def _drawn_runs(comparison: Comparison, methods: Sequence[str]) -> list[Loaded]:
    """Runs of the methods that share fold and seed, in the methods' order; of a few methods where none is named.

    Raises:
        UserError: a method has no finished run, or none of the same fold and seed.
    """
    if not methods:
        return featured(comparison)
    runs = [{r.replicate: r for r in comparison.runs_of(finished(comparison, name))} for name in methods]
    for shared in runs[0]:
        if all(shared in one for one in runs):
            return [one[shared] for one in runs]
    raise UserError(f"timeline: {listed(methods)} have no run of the same fold and seed")


def finished(comparison: Comparison, label: str) -> str:
    """The method's name, checked to have a finished run.

    Raises:
        UserError: it has none.
    """
    if label not in (names := comparison.labels):
        raise UserError(f"method {label!r}: no finished run{nearest(label, names)}; there are {', '.join(names)}")
    return label


def brief(comparison: Comparison, is_titled: bool) -> str:
    """The table of the columns that lead and the notes on it, as HTML."""
    table = lead_table(comparison).without_blanks().html()
    notes = ["<ul>", *(f"<li>{inline(note)}</li>" for note in text.notes(comparison)), "</ul>"]
    sentence = [] if len(comparison.rows) < 2 else [f"<p>{' '.join(last_lines(comparison))}</p>"]
    return "\n".join([*([f"<p>{comparison.title}</p>"] if is_titled else []), table, *notes, *sentence])


# The end of a run's folder: ``-f0-s1``.
_DRAW: Final = re.compile(r"(-f\d+)?-[rs]\d+$")


def as_frame(rows: Iterable[Mapping[str, object]]) -> DataFrame:
    """Return the rows as a data frame; pandas takes half a second to load."""
    import pandas

    return pandas.DataFrame(rows)


@dataclass(frozen=True, kw_only=True, repr=False)
class Run:
    """One run of a study.

    Attributes:
        item: its place in the inventory of the study.
        study: the study that it belongs to, which is kept as long as the run is.
    """

    item: GridItem
    study: object

    @property
    def _loaded(self) -> Loaded:
        assert self.item.loaded is not None, "a study lists runs that were begun"
        return self.item.loaded

    @property
    def method(self) -> str:
        """Its method's name in tables."""
        return self.item.label

    @property
    def strategy(self) -> str:
        """Name of its method's preset, or its import path."""
        return self.record.strategy

    @property
    def seed(self) -> int:
        """Its seed."""
        return self._loaded.replicate[2]

    @property
    def fold(self) -> int:
        """Its fold; 0 where its split has none."""
        return self._loaded.replicate[0]

    @property
    def replicate(self) -> int | None:
        """Number of the replicate that it belongs to; None: to none."""
        number = self._loaded.value("replicate")
        return number if isinstance(number, int) else None

    @property
    def draw(self) -> str:
        """Fold (where the split has folds) and seed or replicate, in words."""
        return self._loaded.draw

    @property
    def status(self) -> Status:
        """``done``, or how far it is."""
        return self.item.status

    @property
    def folder(self) -> Path:
        """Its folder.

        Raises:
            UserError: it was read from committed results, which have none.
        """
        place = Path(self._loaded.where)
        if not (place / RUN_FILE).exists():
            raise UserError(f"{self._loaded.where}: a committed result has no run folder; load the folder of its runs")
        return place

    @property
    def config(self) -> ExperimentConfig:
        """Its checked configuration.

        Raises:
            UserError: this version cannot read it, or a module of the user's is not there.
        """
        return recorded_config(self.record, self._loaded.where)

    @property
    def record(self) -> RunRecord:
        """Facts about the run as a whole: identities, machine, versions, warnings (``run.json``)."""
        return self._loaded.run

    @property
    def ledger(self) -> Sequence[RoundRecord]:
        """The complete record of every round, clients and devices included (``rounds.jsonl``)."""
        return self._loaded.rounds

    @property
    def rounds(self) -> DataFrame:
        """A row per round: F1 in percent where it was tested, loss, the fleet's costs so far, and real seconds.

        Raises:
            UserError: no round is finished.
        """
        if not self.ledger:
            raise UserError(f"{self._loaded.where}: no round is finished yet")
        # The run itself says the others.
        return round_frame(round_table([self._loaded])).drop(columns=["cell", "setting", "method"])

    @property
    def clients(self) -> DataFrame:
        """A row per client: its device type, its sensors, its training windows, and what its device can do.

        ``tops`` are the device's 10^12 operations per second, ``power_w`` its watts under load, ``f1_percent`` the last
        F1 of the model that it uses, through its own sensors, on all test windows.

        Raises:
            UserError: a module of the user's is not there, or a committed result has no clients.
        """
        clients = self._loaded.known_fleet.clients if self.folder else ()
        types = configured_fleet(self.config, self._loaded.covered("clients"))[1]
        scores = self._loaded.tested.f1_by_client
        return as_frame(
            {
                "client": c.id,
                "type": c.device,
                "sensors": ", ".join(c.modalities),
                "windows": c.num_windows,
                "tops": types[c.device].tops,
                "power_w": types[c.device].active_power_w,
                "f1_percent": 100 * scores.get(c.id, nan),
            }
            for c in clients
        )

    def explain(self, *, round: int, client: int) -> Reasons:
        """Return why a client trains what it trains in one round, in the method's own words and figures.

        Args:
            round: number of the round; the first one after the last finished round may be asked for too.
            client: number of the client, from 0.

        Raises:
            UserError: no such round or client.
        """
        return reasons_for(self.folder, round, client, shown=self.folder.name)

    def __repr__(self) -> str:
        """Return method, fold and seed, and status."""
        return f"<Run {self.method}, {self.draw}: {self.status}, {len(self.ledger)} rounds>"


def _name_in_tables(runs: Sequence[Run], method: StrategyLike) -> str:
    """The name in tables of a method that is given as a class, a configuration, or by any of ``names_of``.

    A name that no run has is returned as it is.

    Raises:
        UserError: no run was of this class or configuration, or several methods or variants have this name.
    """
    if isinstance(method, str):
        return _named(runs, method)
    wanted = parse({"strategy": method_of(method).values}, "gain")
    strategy = wanted.model_dump(mode="json")["strategy"]
    named = next((run.method for run in runs if run.record.config.get("strategy") == strategy), None)
    if named is None:
        names = ", ".join(dict.fromkeys(run.method for run in runs)) or "none"
        raise UserError(f"method {wanted.label()} with {strategy}: no run of it; there are {names}")
    return named


def names_of(run: Run) -> tuple[frozenset[str], ...]:
    """All names of a run's method, the most specific first.

    Its name in tables; its preset or import path; its folder without fold and seed; its class and its title; the file
    of its class.
    """
    module, _, kind = run.strategy.partition(":")
    title = run.item.method.name if run.item.method is not None else ""
    file = (module, module.rpartition(".")[2], f"{module}.{kind}") if kind else ()
    tiers = ((run.method,), (run.strategy,), (_DRAW.sub("", run.item.name),), (kind, title), file)
    return tuple(frozenset(names) - {""} for names in tiers)


def _named(runs: Sequence[Run], name: str) -> str:
    """The table name of the method called ``name``, ignoring case; else ``name`` itself.

    Raises:
        UserError: several go by it.
    """
    tiers = list(zip(*map(names_of, runs), strict=True))
    for spelled in (str, _plainly):
        wanted = {spelled(name), spelled(import_path(name))}
        for tier in tiers:
            fits = {
                run.method: run.strategy
                for run, names in zip(runs, tier, strict=True)
                if wanted & {*map(spelled, names)}
            }
            if len(fits) > 1:
                noun = "variants" if len({*fits.values()}) == 1 else "methods of that name"
                raise UserError(f"method {name!r}: {len(fits)} {noun} ran; name one of them: {', '.join(fits)}")
            if fits:
                return next(iter(fits))
    return name


def _plainly(name: str) -> str:
    """A name in small letters, with one underscore for whatever is neither letter nor digit."""
    return re.sub(r"[\W_]+", "_", name.casefold())


# What figures need that not every study has.
_NEEDS = {
    "convergence": "runs that were tested in two rounds",
    "rare": "runs that were tested in two rounds, with their folders",
    "pareto": "two methods",
    "cosine": "runs with record.pairwise_every=1",
    "phases": "runs of five rounds with record.pairwise_every=1",
    "divergence": "a run of RELIEF",
    "allocation": "a run folder",
    "devices": "a run folder",
}


class Study:
    """Runs that belong together: what ``relief_ray.run`` returns and ``relief_ray.load`` opens.

    Everything is read from the records in ``folder``, so a study that is loaded later says the same.

    Attributes:
        folder: the study's folder (or its file of committed results); of several the first.
        folders: all of them.
        name: the name that its plan has.
    """

    def __init__(self, *folders: Path, is_temporary: bool = False) -> None:
        """Read the records of the folders; with ``is_temporary`` their path is left out of what is shown.

        Raises:
            UserError: a folder holds neither a plan, nor a run, nor committed results.
        """
        self.folder, self.folders = folders[0], folders
        self._is_temporary = is_temporary
        self._inventory = take_inventory(folders)
        self.name = "; ".join(self._inventory.titles) or self.folder.resolve().name

    @property
    def runs(self) -> tuple[Run, ...]:
        """Every run that was begun, finished or not, in the order of the plan."""
        return tuple(Run(item=item, study=self) for item in self._inventory.items if item.loaded is not None)

    @property
    def settings(self) -> tuple[str, ...]:
        """Settings whose runs can be compared: everything equal but method, fold and seed."""
        return tuple(one.title for one in self._comparisons)

    @property
    def data_warnings(self) -> tuple[str, ...]:
        """Sentences on what is odd about the data of these runs: classes without rows, rows left out, ..

        They were shown when the runs began, and `relief-ray data describe` shows them again; empty: nothing is.
        """
        return tuple(dict.fromkeys(note for run in self.runs for note in run.record.data_notes))

    @property
    def frame(self) -> DataFrame:
        """A row per finished run: method, fold, seed, replicate, F1 in percent, and costs summed over fleet and rounds.

        Columns carry their unit: ``f1_percent``, ``f1_rare_percent``, ``f1_own_sensors_percent``, ``f1_acc_percent``
        (one sensor alone), ``time_s``, ``fleet_up_mib``, ..; seconds and joules are simulated by the clock in
        ``clock``.
        ``speedup`` and ``link_percent`` are those of ``table()``; ``setting`` says of each of ``settings`` what sets it
        apart. ``print(study.frame.to_string())`` prints all
        columns, however narrow the terminal is.
        """
        return self._cells.frame

    @property
    def rounds(self) -> DataFrame:
        """A row per round of every finished run; costs are sums so far, F1 is empty where it was not tested.

        ``loss`` and the round's real seconds, ``wall_s``, are empty in committed results, which do not keep them.
        """
        return self._cells.round_frame

    def table(
        self, *, setting: str | None = None, clock: str | None = None, width: int = text.NARROW, wide: bool = False
    ) -> Page:
        """Return scores and costs by method: means over runs, with differences to FedAvg over paired runs.

        Args:
            setting: part of the name of one of ``settings``; None: all, each under its name.
            clock: the time model behind seconds and joules; None: the one that the allocator planned with.
            width: of printed lines.
            wide: all columns, not only those that lead.

        Raises:
            UserError: no run is finished, no such setting or clock, or a width that holds no table.
        """
        chosen = self._chosen(setting)
        made = [(f"{one.title}\n\n" if len(chosen) > 1 else "", _by(one, clock)) for one in chosen]
        plain = [head + text.plain(one, width, wide=wide) for head, one in made]
        marked = [(head and f"### {head}") + text.markdown(one, wide=wide) for head, one in made]
        return Page(text="\n".join(plain), markdown="\n".join(marked))

    def verdicts(self) -> Verdicts:
        """Return the verdicts on the claims that were named before the first run.

        Without claims the sentence says so: differences are then described by ``table`` and ``gain``, not tested.

        Raises:
            UserError: no run is finished.
        """
        return judged(self._chosen(None), registry_of(self.folders))

    def gain(
        self, method: StrategyLike, other: StrategyLike = REFERENCE, *, figure: str = "f1", setting: str | None = None
    ) -> Paired | None:
        """Return ``method`` minus ``other`` in points after the last round, over paired runs (same fold and seed).

        ``figure`` is what is compared: ``f1``, ``f1_rare``, ``f1_own_sensors``, ``f1_own_subjects``, ``f1_at_seconds``,
        ``f1_own_sensors_at_seconds`` or ``f1_at_joules``. Methods may be given as ``run`` takes them:
        ``study.gain(Mine, "fedavg")``, ``study.gain(Mine(trim=0.4))``. The result
        has ``mean``, its 95 % interval ``low`` to ``high``, ``p`` of a sign-flip test, and ``smallest_found``: the
        smallest true difference that so few pairs find in 80 of 100 studies. Its ``unit`` is a paired run, or the mean
        of a replicate where a claim would be tested on these. Where all differences are exactly 0, all but
        ``mean`` and ``p`` are None. None: no pair has the figure.

        Raises:
            UserError: no run of one of the methods, no such figure, or several settings of which none was named.
        """
        mine, theirs = (_name_in_tables(self.runs, name) for name in (method, other))
        return gain(self._cells_of(setting), mine, theirs, figure)

    def gains(self, other: StrategyLike = REFERENCE, *, figure: str = "f1", setting: str | None = None) -> DataFrame:
        """Return ``gain`` of every method over ``other``: a row each, in points of ``figure``.

        ``p_holm`` corrects ``p`` for the number of methods, as the intervals do not; bounds are compared, but take no
        part in the correction. ``print(study.gains().round(2).to_string())`` prints all columns, however narrow the
        terminal is.

        Raises:
            UserError: as ``gain``.
        """
        return gain_frame(self._cells_of(setting), _name_in_tables(self.runs, other), figure)

    def timeline(self, *methods: str, round: int | None = None, setting: str | None = None) -> Picture:
        """Draw one simulated round device by device, one method above another.

        Args:
            methods: their names in tables or their import paths; the upper one is what speed and joules are compared
                with. None: FedAvg above RELIEF (or the nearest of its kin) and the user's own.
            round: number of the round; None: the last.
            setting: part of the name of one of ``settings``, where there are several.

        Raises:
            UserError: the methods have no run of the same fold and seed, no such round, or no matplotlib.
        """
        runs = _drawn_runs(self._one(setting), [_name_in_tables(self.runs, method) for method in methods])
        return drawn(lambda path: timeline(runs, path, round_=round), " above ".join(r.title for r in runs))

    def curves(self, *, setting: str | None = None) -> Picture:
        """Draw F1 over rounds, the mean over runs, and the differences to FedAvg below; ``figure`` has other costs.

        Raises:
            UserError: no run is finished, or matplotlib is not installed.
        """
        comparison = self._one(setting)
        return drawn(lambda path: curves(comparison, path), comparison.title)

    def figure(
        self, name: str, *, method: str | None = None, over: str | None = None, setting: str | None = None
    ) -> Picture:
        """Draw one figure of the report, e.g. ``allocation``: which client trained what.

        Args:
            name: ``convergence``, ``rare``, ``pareto``, ``modalities``, ``cosine``, ``phases``, ``divergence``,
                ``allocation``, ``devices`` or ``round``.
            method: of ``allocation`` alone: the method that is drawn; None: RELIEF.
            over: of ``convergence``, ``rare`` and ``pareto``: ``rounds``, ``seconds``, ``joules`` or ``MiB``; None: the
                first that the report shows.
            setting: part of the name of one of ``settings``, where there are several.

        Raises:
            UserError: no such figure, its records were not kept, or matplotlib is not installed.
        """
        if name not in FIGURES:
            raise UserError(f"figure {name!r}: unknown{nearest(name, FIGURES)}; expected one of {', '.join(FIGURES)}")
        if method is not None and name != "allocation":
            raise UserError(f"figure {name!r}: shows all methods; expected method= with 'allocation' alone")
        comparison = self._one(setting)
        if method is None:
            plot = FIGURES[name](comparison)
        else:
            plot = allocation(comparison, finished(comparison, _name_in_tables(self.runs, method)))
        if plot is None:
            needs = f", which needs {_NEEDS[name]}" if name in _NEEDS else ""
            raise UserError(f"{self._place}: the records of its runs do not hold the figure {name!r}{needs}")

        if over is not None and over not in plot.views:
            known = f"expected {listed(plot.views)}" if plot.views else "expected none with this figure"
            raise UserError(f"figure {name!r}, over={over!r}: unknown{nearest(over, plot.views)}; {known}")

        def draw(path: Path) -> None:
            with sheet(plot.height_in) as canvas:
                (plot.draw if over is None else plot.views[over])(canvas)
                save(canvas, path)

        return drawn(draw, plot.caption)

    def report(self, folder: str | Path | None = None) -> Path:
        """Write the whole report (HTML, Markdown, tables as CSV and LaTeX, figures) and return the page ``index.html``.

        Args:
            folder: where; None: ``report`` in the study's folder, of several ``report-a-b`` in the current one.

        Raises:
            UserError: the folder cannot be written.
        """
        home = self.folder if self.folder.is_dir() else self.folder.parent
        folders = [home] if len(self.folders) == 1 else self.folders
        place = default_place(folders) if folder is None else Path(folder)
        command = command_of(self.folders)
        write(build(self._inventory, registry_of(self.folders), explain=reasons_of, command=command), place)
        return place / "index.html"

    def run(
        self, method: str, *, seed: int | None = None, fold: int | None = None, replicate: int | None = None
    ) -> Run:
        """Return one run: its configuration, its rounds, and why its clients trained what they trained.

        Args:
            method: its name in tables, or its import path, class, file or folder: of ``trimmed:Trimmed`` also
                ``trimmed``.
            seed: where the method ran with several.
            fold: where it ran on several.
            replicate: in place of a seed, for runs that belong to replicates.

        Raises:
            UserError: there is no such run, or several fit.
        """
        label = _name_in_tables(self.runs, method)
        mine = [run for run in self.runs if run.method == label]
        if not mine:
            raise UserError(f"method {method!r}: no run{_similar(method, self.runs)}; there are {_listed(self.runs)}")
        wanted = {"seed": seed, "fold": fold, "replicate": replicate}
        fits = [run for run in mine if all(v is None or getattr(run, k) == v for k, v in wanted.items())]
        if len(fits) == 1:
            return fits[0]
        shown = ", ".join(f"{key}={value}" for key, value in wanted.items() if value is not None)
        found = f"{len(fits)} runs fit" if fits else "no such run"
        raise UserError(
            f"run({method!r}{', ' if shown else ''}{shown}): {found}; there are "
            f"{'; '.join(run.draw for run in fits or mine)}; name seed, fold or replicate"
        )

    @property
    def _place(self) -> str:
        return listed(self.folders)

    @cached_property
    def _cells(self) -> Cells:
        return cells_of(self._inventory)

    @cached_property
    def _comparisons(self) -> tuple[Comparison, ...]:
        return tuple(comparison for comparison in by_setting(self._inventory) if comparison.runs)

    def _chosen(self, setting: str | None) -> Sequence[Comparison]:
        if not self._comparisons:
            raise UserError(f"{self._place}: no finished run ({self._counts()}); call run() again with the same out=")
        fits = [e for e in self._comparisons if setting is None or all(part in e.title for part in setting.split(", "))]
        brief = brief_settings(self.settings)
        exact = [e for e in fits if setting in (e.title, brief[e.title])]
        if not fits:
            known = "; ".join(self.settings)
            raise UserError(f"setting {setting!r}: unknown{nearest(str(setting), self.settings)}; there are {known}")
        return exact or fits

    def _one(self, setting: str | None) -> Comparison:
        chosen = self._chosen(setting)
        if len(chosen) > 1:
            titles = "; ".join(e.title for e in chosen)
            raise UserError(f"{len(chosen)} settings fit ({titles}); name one of them: setting='..'")
        return chosen[0]

    def _cells_of(self, setting: str | None) -> Cells:
        """Finished runs of one setting."""
        runs = self._cells.runs
        return replace(self._cells, runs=runs[runs["cell"].isin([item.name for item in self._one(setting).items])])

    def _counts(self) -> str:
        numbers = Counter(item.status for item in self._inventory.items)
        return ", ".join(f"{number} {status}" for status, number in numbers.items()) or "no runs"

    def _said(self, place: str) -> str:
        return f"{counted(len(self._inventory.items), 'run')} ({self._counts()}) in {place}"

    def __repr__(self) -> str:
        """Return name, number of runs by status, and folder."""
        return f"<Study {self.name}: {self._said('a temporary folder' if self._is_temporary else self._place)}>"

    def _repr_html_(self) -> str:
        place = "a temporary folder (<code>.folder</code>)" if self._is_temporary else f"<code>{self._place}</code>"
        parts = [brief(one, len(self._comparisons) > 1) for one in self._comparisons]
        return "\n".join([f"<p><b>{self.name}</b>: {self._said(place)}</p>", *parts])


def _similar(name: str, runs: Iterable[Run]) -> str:
    """Hint at the method name that is most similar to ``name``."""
    return nearest(name, dict.fromkeys(known for run in runs for names in names_of(run) for known in sorted(names)))


def _listed(runs: Iterable[Run]) -> str:
    """The methods' names in tables, a user's own with its import path."""
    methods = {run.method: f" ({run.strategy})" if is_path(run.strategy) else "" for run in runs}
    return ", ".join(method + path for method, path in methods.items()) or "none"


def load(path: str | Path | Iterable[str | Path]) -> Study:
    """Open a study: a folder of `relief-ray run` or `grid`, a single run's folder, or committed results.

    Nothing is computed and nothing in the folder is changed; a run that is under way shows what it has so far.

    Args:
        path: ``runs/demo``, ``runs/demo/relief-f0-s0``, ``results/smoke`` or ``results/smoke/cells.json``; or a list
            of such, which are one study: a run that lies in several counts once.

    Raises:
        UserError: there is no such folder, or nothing of these is in it.
    """
    given: object = path
    paths = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    if not paths:
        raise UserError("load: found an empty list, expected folders of runs, e.g. load(['runs/first', 'runs/second'])")
    return Study(*dict.fromkeys(map(_path, paths)))


def _path(given: object) -> Path:
    """The path that was given.

    Raises:
        UserError: it is none.
    """
    if not isinstance(given, str | Path):
        raise UserError(f"load: found {shown(given)}, expected the path of a folder, e.g. load('runs/demo'), or a list")
    return Path(given).expanduser()
