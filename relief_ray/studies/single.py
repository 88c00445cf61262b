"""One run of a study: its configuration, its rounds, and why its clients trained what they trained."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from relief_ray.config.experiment import ExperimentConfig, parse
from relief_ray.plugins.load import import_path
from relief_ray.records.run_folder import RUN_FILE
from relief_ray.records.schema import RoundRecord, RunRecord, Status
from relief_ray.report.frames import round_frame
from relief_ray.report.inventory import GridItem
from relief_ray.report.results import round_table
from relief_ray.report.runs import Loaded, run_value
from relief_ray.studies.objects import StrategyLike, method_of
from relief_ray.support.errors import UserError

if TYPE_CHECKING:
    from pandas import DataFrame

    from relief_ray.studies.reasons import Reasons


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
        number = run_value(self.record, "replicate")
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
        return parse(self.record.config, self._loaded.where)

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

        ``peak_tops`` are the device's 10^12 operations per second, ``power_w`` its watts under load.

        Raises:
            UserError: the run's data are not there.
        """
        from relief_ray.studies.plan import open_run

        setup = open_run(self.folder)
        kinds = {name: (kind.peak_tops, kind.active_power_w) for name, kind in setup.types.items()}
        return as_frame(
            [
                {"client": c.id, "type": c.device, "sensors": ", ".join(c.modalities), "windows": c.num_windows,
                 "peak_tops": kinds[c.device][0], "power_w": kinds[c.device][1]}
                for c in setup.fleet.clients
            ]
        )  # fmt: skip

    def explain(self, *, round: int, client: int) -> Reasons:
        """Return why a client trains what it trains in one round, in the method's own words and figures.

        Args:
            round: number of the round; the first one after the last finished round may be asked for too.
            client: number of the client, from 0.

        Raises:
            UserError: no such round or client, or the run's data are not there.
        """
        from relief_ray.studies.reasons import reasons_for

        return reasons_for(self.folder, round, client, shown=self.folder.name)

    def __repr__(self) -> str:
        """Return method, fold and seed, and status."""
        return f"<Run {self.method}, {self.draw}: {self.status}, {len(self.ledger)} rounds>"


def name_in_tables(runs: Sequence[Run], method: StrategyLike) -> str:
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
    """The names that a run's method goes by, the surest first.

    Its name in tables; its preset or import path; its folder without fold and seed; its class and its title; the file
    of its class.
    """
    module, _, kind = run.strategy.partition(":")
    title = run.item.method.name if run.item.method is not None else ""
    file = (module, module.rpartition(".")[2], f"{module}.{kind}") if kind else ()
    tiers = ((run.method,), (run.strategy,), (_DRAW.sub("", run.item.name),), (kind, title), file)
    return tuple(frozenset(names) - {""} for names in tiers)


def _named(runs: Sequence[Run], name: str) -> str:
    """The name in tables of the method that goes by ``name``, letters in any case; else ``name``.

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
