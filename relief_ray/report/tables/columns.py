"""Columns of figures: heading, unit, decimals and meaning of each, for `compare` and `report` alike.

The headings of words (``method``, ``runs``, ``setting``) belong to their tables. Keys of JSON and CSV are ``figure``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from relief_ray.report.comparison import Comparison, MethodResult
from relief_ray.report.paper import PAPER_DATA
from relief_ray.report.statistics import Paired
from relief_ray.support.text import percent


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """Column of one figure of a method."""

    label: str
    """Name of the figure."""
    figure: str = ""
    """Its key in ``MethodResult.stats``; empty for a difference."""
    decimals: int = 1
    """Digits after the point."""
    unit: str = ""
    """Printed behind the label; empty where the label names it."""
    scale: float = 1.0
    """Factor from the statistic's unit to the printed one."""
    spread: bool = False
    """`compare` prints the standard deviation too (`report` always does)."""
    paper: str = ""
    """Heading of the same figure in the paper's tables; ``{data}`` stands for the data set."""
    brief: str = ""
    """Heading under which `compare` shows the paper's values beside ours, after "paper's"; empty: it does not."""
    meaning: str = ""
    """Sentence for the legend of `compare`, where the heading does not say it all."""
    gain: Callable[[Comparison, MethodResult], Paired | None] | None = None
    """Of a column of differences: a method's."""

    @property
    def head(self) -> str:
        """Heading: ``F1 %``, ``round, s``."""
        return f"{self.label} %" if self.unit == "%" else ", ".join(filter(None, (self.label, self.unit)))

    def rounded(self, value: float) -> str:
        """The figure as it is printed; a share of the link that only rounds to 100 % is ``> 99``."""
        shown = value * self.scale + 0.0
        return percent(shown, self.decimals) if self is LINK else f"{shown:.{self.decimals}f}"

    def printed(self, dataset: str) -> str:
        """The paper's column with this figure of a data set; empty where it prints none.

        All but F1 are of PAMAP2, F1 of MHEALTH too.
        """
        known = PAPER_DATA if "{data}" in self.paper else ("pamap2",)
        return self.paper.format(data=PAPER_DATA[dataset]) if dataset in known else ""


_DATA = "{data} F1 (%)"
# Of the canonical model, of the clients' own models, and whichever of the two is the method's headline.
F1 = Column(label="F1", unit="%", figure="f1_canonical_percent", spread=True, paper=_DATA, brief="F1 %")
OWN_F1 = Column(
    label="F1 own", unit="%", figure="f1_own_sensors_percent", spread=True, paper=_DATA, brief="F1 %",
    meaning="mean over clients of the F1 of the model that each uses, through its own sensors",
)  # fmt: skip
OWN_SUBJECTS_F1 = Column(
    label="F1 own subjects", unit="%", figure="f1_own_subjects_percent",
    meaning="as `F1 own %`, on the windows of the subjects that the client trained on",
)  # fmt: skip
WORST_CLIENT_F1 = Column(
    label="worst client", unit="%", figure="f1_worst_client_percent",
    meaning="F1 of the client that is served worst, through its own sensors",
)  # fmt: skip
WORST_TENTH_F1 = Column(
    label="worst tenth", unit="%", figure="f1_worst_tenth_percent",
    meaning="mean F1 of the tenth of the clients that is served worst, through their own sensors",
)  # fmt: skip
AT_ROUNDS_F1 = Column(
    label="F1 at equal rounds", unit="%", figure="f1_at_rounds_percent",
    meaning="F1 after as many aggregations as the method with the fewest, a bootstrap counted as one, interpolated "
    "between tests",
)  # fmt: skip
AT_SECONDS_F1 = Column(
    label="F1 at equal s", unit="%", figure="f1_at_seconds_percent",
    meaning="F1 when as many simulated seconds were spent as the faster of FedAvg and RELIEF (without one of them: the "
    "fastest method) took in all, interpolated between tests",
)  # fmt: skip
AT_JOULES_F1 = Column(
    label="F1 at equal J", unit="%", figure="f1_at_joules_percent",
    meaning="as `F1 at equal s %`, at equal joules",
)  # fmt: skip
HEADLINE = Column(label="F1", unit="%", figure="f1_percent", paper=_DATA)
RARE_F1 = Column(
    label="rare F1", unit="%", figure="f1_rare_percent", spread=True, paper="rare-modality F1 (%)",
    brief="rare %", meaning="F1 with one sensor alone, mean over the sensors that the fewest clients own",
)  # fmt: skip
BEST_F1 = Column(
    label="F1 % at best validation", figure="f1_best_percent",
    meaning="headline F1 on the test part in the round of the best F1 on the validation part",
)  # fmt: skip
LAST10_F1 = Column(
    label="last-10 F1", unit="%", figure="f1_last10_percent",
    meaning="mean headline F1 of the tests in the last ten rounds",
)  # fmt: skip

ROUND_S = Column(label="round", unit="s", figure="round_s", decimals=2, paper="round (s)")
SPEEDUP = Column(
    label="speedup", figure="speedup", decimals=2, paper="speedup", brief="speedup",
    meaning="FedAvg's simulated seconds over the method's for the same number of rounds, a bootstrap included; where "
    "FedAvg did not run, its rounds are computed",
)  # fmt: skip
SPEEDUP_ROUND = Column(
    label="speedup a round", figure="speedup_round", decimals=2, meaning="the speedup of the rounds after a bootstrap",
)  # fmt: skip
_SPEEDUP_COMPUTE = Column(
    label="compute", figure="speedup_compute", decimals=2, meaning="the speedup without uploads and downloads",
)  # fmt: skip
AT_PAPER = Column(
    label="at 1,900 x 5", figure="speedup_paper", decimals=2,
    meaning="speedup of these allocations with the paper's 1,900 windows a client and 5 epochs, by the planning clock",
)  # fmt: skip
LINK = Column(
    label="link", unit="%", figure="link_percent", decimals=0,
    meaning="share of the slowest client's round that is upload and download",
)  # fmt: skip
# What a speedup depends on; stands beside each.
SPEED_CONTEXT = (_SPEEDUP_COMPUTE, LINK, AT_PAPER)
SPEEDUP_TOTAL = Column(
    label="speedup with bootstrap", figure="speedup_total", decimals=2,
    meaning="speedup of the whole run, a bootstrap round before round 1 included",
)  # fmt: skip
WALL_S = Column(
    label="wall", unit="s", figure="wall_s", decimals=2, meaning="seconds that a round took on this machine"
)  # fmt: skip
ROUNDS_TO_85 = Column(
    label="rounds to 85 %", figure="tta85_rounds", decimals=0, paper="TTA (rounds)", brief="rounds",
    meaning="rounds until the headline F1 is 85 %, among the rounds that were tested",
)  # fmt: skip
ROUNDS_TO_FEDAVG = Column(
    label="rounds to 95 % of FedAvg", figure="tta95_rounds", decimals=0,
    meaning="rounds until the headline F1 is 95 % of FedAvg's last",
)  # fmt: skip
SECONDS_TO_FEDAVG = Column(label="s to 95 % of FedAvg", figure="tta95_s")
JOULES_TO_FEDAVG = Column(label="J to 95 % of FedAvg", figure="tta95_j", decimals=0)

JOULES = Column(
    label="J/round", figure="energy_j", decimals=0, paper="energy (J)", brief="J",
    meaning="joules of the whole fleet in a mean round",
)  # fmt: skip
JOULES_TOTAL = Column(label="J in total", figure="energy_total_j", decimals=0)
JOULES_SAVED = Column(label="J saved", unit="%", figure="energy_saved_percent")

_UPLOAD = "mean upload of one client in a round"
# Table I prints megabytes, Table II kilobytes.
UP = {
    "cnn": Column(label="up", unit="MiB", figure="up_mib", decimals=2, paper="Comm (MB)", brief="MB", meaning=_UPLOAD),
    "moment_lora": Column(
        label="up", unit="KiB", figure="up_mib", decimals=0, scale=1024.0, paper="Comm (KB)", brief="KB",
        meaning=_UPLOAD,
    ),
}  # fmt: skip
UP_SAVED = Column(label="up saved", unit="%", figure="up_saved_percent", paper="save (%)")
UP_MAX = Column(
    label="up max", unit="MiB", figure="up_max_mib", decimals=2, meaning="largest upload of a client in a round"
)  # fmt: skip
TRAINED = Column(
    label="trained", unit="%", figure="trained_percent",
    meaning="values that a client trains in a round, of all values of the backbone",
)  # fmt: skip
FREE_SLOTS = Column(
    label="free slots", figure="free_slots", decimals=2,
    meaning="groups of a client and round that no rule demands: the ranking could fill them",
)  # fmt: skip
CHOSEN_SLOTS = Column(
    label="of them a choice", figure="chosen_slots", decimals=2,
    meaning="free slots where a group was left over, so that the ranking decided",
)  # fmt: skip


def sent_by(kind: str) -> Column:
    """Share of the uploaded bytes that devices of one type sent."""
    return Column(
        label=f"sent by {kind}", unit="%", figure=f"sent_{kind}_percent", decimals=0,
        meaning="share of all uploaded bytes that devices of this type sent",
    )  # fmt: skip


def own_metric(name: str) -> Column:
    """A user's own metric, of the models that the headline F1 is of."""
    return Column(label=name, unit="%", figure=f"{name}_percent", spread=True)


def modality_f1(modality: str) -> Column:
    """F1 of the canonical model that sees one modality alone."""
    return Column(label=modality, unit="%", figure=f"f1_{modality}_percent", meaning="F1 with one sensor alone")
