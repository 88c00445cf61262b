"""Columns of figures: heading, unit, decimals and meaning of each, for `compare` and `report` alike.

The headings of words (``method``, ``runs``, ``setting``) belong to their tables. Keys of JSON and CSV are ``figure``,
whose value ``report.results`` computes for every run. Which table shows a column stands in ``tables.methods``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

from relief_ray.report.comparison import Comparison, MethodResult
from relief_ray.report.statistics import Paired
from relief_ray.support.text import percent


@dataclass(frozen=True, slots=True)
class Column:
    """Column of one figure of a method."""

    label: str
    """Name of the figure."""
    figure: str = ""
    """Its key in ``MethodResult.stats``; empty for a difference."""
    unit: str = ""
    """Printed behind the label; empty where the label names it, and for percents, which the key names."""
    _: KW_ONLY
    decimals: int = 1
    """Digits after the point."""
    scale: float = 1.0
    """Factor from the statistic's unit to the printed one."""
    spread: bool = False
    """`compare` prints the standard deviation too (`report` always does)."""
    paper: str = ""
    """Heading of the same figure in the paper's tables; ``{data}`` stands for the data set."""
    meaning: str = ""
    """Sentence for the legend of `compare`, where the heading does not say it all."""
    gain: Callable[[Comparison, MethodResult], Paired | None] | None = None
    """Of a column of differences: a method's."""

    @property
    def head(self) -> str:
        """Heading: ``F1 %``, ``round, s``."""
        is_percent = self.figure.endswith("_percent") and "%" not in self.label
        return f"{self.label} %" if is_percent else ", ".join(filter(None, (self.label, self.unit)))

    def rounded(self, value: float) -> str:
        """The figure as it is printed; a share of the link that only rounds to 100 % is ``> 99``."""
        shown = value * self.scale + 0.0
        return percent(shown, self.decimals) if self is LINK else f"{shown:.{self.decimals}f}"


_DATA = "{data} F1 (%)"
# Of the canonical model, of the clients' own models, and whichever of the two is the method's headline.
F1 = Column(
    "F1",
    "f1_canonical_percent",
    spread=True,
    paper=_DATA,
    meaning="macro-F1 of the server's model in the last tested round, through all sensors, on all test windows",
)
OWN_F1 = Column(
    "F1 own",
    "f1_own_sensors_percent",
    spread=True,
    paper=_DATA,
    meaning="mean over clients of the F1 of the model that each uses, through its own sensors, on all test windows",
)
OWN_SUBJECTS_F1 = Column(
    "F1 own subjects",
    "f1_own_subjects_percent",
    meaning="as `F1 own %`, on the windows of the subjects that the client trained on",
)
WORST_CLIENT_F1 = Column(
    "worst client", "f1_worst_client_percent", meaning="F1 of the client that is served worst, through its own sensors"
)
WORST_TENTH_F1 = Column(
    "worst tenth",
    "f1_worst_tenth_percent",
    meaning="mean F1 of the tenth of the clients that is served worst, through their own sensors",
)
AT_SECONDS_F1 = Column(
    "F1 at equal s",
    "f1_at_seconds_percent",
    meaning="F1 when as many simulated seconds were spent as the faster of FedAvg and RELIEF (without one of them: the "
    "fastest method) took in all, interpolated between tests",
)
AT_SECONDS_OWN_F1 = Column(
    "F1 own at equal s", "f1_own_sensors_at_seconds_percent", meaning="as `F1 at equal s %`, through own sensors"
)
AT_JOULES_F1 = Column("F1 at equal J", "f1_at_joules_percent", meaning="as `F1 at equal s %`, at equal joules")
HEADLINE = Column("F1", "f1_percent", paper=_DATA)
RARE_F1 = Column(
    "rare F1",
    "f1_rare_percent",
    spread=True,
    paper="rare-modality F1 (%)",
    meaning="F1 with one sensor alone, mean over the sensors that the fewest clients own",
)
BEST_F1 = Column(
    "F1 % at best validation",
    "f1_best_percent",
    meaning="headline F1 on the test part in the round of the best F1 on the validation part",
)
LAST10_F1 = Column("last-10 F1", "f1_last10_percent", meaning="mean headline F1 of the tests in the last ten rounds")

ROUND_S = Column("round", "round_s", "s", decimals=2, paper="round (s)")
SPEEDUP = Column(
    "speedup",
    "speedup",
    decimals=2,
    paper="speedup",
    meaning="FedAvg's simulated seconds over the method's for the same number of rounds, a bootstrap included; where "
    "FedAvg did not run, its rounds are computed",
)
SPEEDUP_ROUND = Column(
    "speedup a round", "speedup_round", decimals=2, meaning="the speedup of the rounds after a bootstrap"
)
_SPEEDUP_COMPUTE = Column("compute", "speedup_compute", decimals=2, meaning="the speedup without uploads and downloads")
AT_PAPER = Column(
    "at 1,900 x 5",
    "speedup_paper",
    decimals=2,
    meaning="speedup of these allocations with the paper's 1,900 windows a client and 5 epochs, by the planning clock",
)
LINK = Column(
    "link", "link_percent", decimals=0, meaning="share of the slowest client's round that is upload and download"
)
# What a speedup depends on; stands beside each.
SPEED_CONTEXT = (_SPEEDUP_COMPUTE, LINK, AT_PAPER)
WALL_S = Column("wall", "wall_s", "s", decimals=2, meaning="seconds that a round took on this machine")
ROUNDS_TO_85 = Column(
    "rounds to 85 %",
    "tta85_rounds",
    decimals=0,
    paper="TTA (rounds)",
    meaning="rounds until the headline F1 is 85 %, among the rounds that were tested; `12 (1/48)`: the mean is of 1 of "
    "48 runs, the others did not get there",
)
ROUNDS_TO_FEDAVG = Column(
    "rounds to 95 % of FedAvg",
    "tta95_rounds",
    decimals=0,
    meaning="rounds until the headline F1 is 95 % of FedAvg's last",
)
SECONDS_TO_FEDAVG = Column("s to 95 % of FedAvg", "tta95_s")
JOULES_TO_FEDAVG = Column("J to 95 % of FedAvg", "tta95_j", decimals=0)

JOULES = Column(
    "J/round",
    "energy_j",
    decimals=0,
    paper="energy (J)",
    meaning="joules of the whole fleet in a mean round",
)
JOULES_TOTAL = Column("J in total", "energy_total_j", decimals=0)
JOULES_SAVED = Column("J saved", "energy_saved_percent")

_UPLOAD = "mean upload of one client in a round"
# Table I prints megabytes, Table II kilobytes.
UP = {
    "cnn": Column("up", "up_mib", "MiB", decimals=2, paper="Comm (MB)", meaning=_UPLOAD),
    "moment_lora": Column("up", "up_mib", "KiB", decimals=0, scale=1024.0, paper="Comm (KB)", meaning=_UPLOAD),
}
UP_SAVED = Column("up saved", "up_saved_percent", paper="save (%)")
UP_MAX = Column("up max", "up_max_mib", "MiB", decimals=2, meaning="largest upload of a client in a round")
TRAINED = Column(
    "trained", "trained_percent", meaning="values that a client trains in a round, of all values of the backbone"
)
FREE_SLOTS = Column(
    "free slots",
    "free_slots",
    decimals=2,
    meaning="groups of a client and round beyond those that the method demands: what its ranking may choose",
)
CHOSEN_SLOTS = Column(
    "of them a choice",
    "chosen_slots",
    decimals=2,
    meaning="free slots where a group was left over, so that the ranking decided",
)


def sent_by(kind: str) -> Column:
    """Share of the uploaded bytes that devices of one type sent."""
    return Column(
        f"sent by {kind}",
        f"sent_{kind}_percent",
        decimals=0,
        meaning="share of all uploaded bytes that devices of this type sent",
    )


def own_metric(name: str) -> Column:
    """A user's own metric, of the models that the headline F1 is of."""
    return Column(name, f"{name}_percent", spread=True)


def modality_f1(modality: str) -> Column:
    """F1 of the canonical model that sees one modality alone."""
    return Column(modality, f"f1_{modality}_percent", meaning="F1 with one sensor alone")
