"""The paper's tables and figures as grids, our own question about them, and a small grid for a first try."""

from __future__ import annotations

from relief_ray.report.paper import PAPER_METHODS, REPRESENTATIVE, V1
from relief_ray.strategies import BOUNDS, OUR_VARIANTS, PROPOSED, REFERENCE, VARIANTS
from relief_ray.studies.spec import BRIEF, CNN, LORA, PAPER, SHORT, Axis, Level, Spec, backbones
from tune_configs import CLAIMS

MAIN_CNN = Spec(
    name="main_cnn",
    title="Table I: 11 methods on Backbone 1, and the bounds",
    methods=(*PAPER_METHODS, *BOUNDS),
    axes=(backbones(CNN),),
    settings=PAPER,
)
"""Table I: Backbone 1 with 11 methods and four bounds, 2 datasets, 3 replicates."""


# RELIEF+ receives what its sensors reach alone; methods that train everything everywhere cannot.
_PLUS = {"relief_plus": (Level(name="reachable", settings={"transfer.download": "reachable"}),)}

MAIN_LORA = Spec(
    name="main_lora",
    title="Table II: 11 methods on Backbone 2, RELIEF+, and the bounds",
    methods=(*PAPER_METHODS, *_PLUS, *BOUNDS),
    axes=(backbones(LORA),),
    own=_PLUS,
    settings=PAPER,
)
"""Table II: Backbone 2 with 11 methods, RELIEF+ and four bounds, 2 datasets, 3 replicates."""


# Eq. (2) feeds zeros into the encoder, Section III-B leaves its features zero.
_MISSING = tuple(Level(name=kind, settings={"training.missing": kind}) for kind in ("zero_input", "zero_feature"))


ABLATION = Spec(
    name="ablation",
    title="Table III: V0 to V3, RELIEF+ and three variants of ours, the bounds, both backbones and missing modes",
    methods=(REFERENCE, PROPOSED, *VARIANTS, *OUR_VARIANTS, *BOUNDS),
    axes=(backbones(CNN, LORA), Axis(name="missing", levels=_MISSING)),
    own=_PLUS,
    settings=PAPER,
)
"""Table III: V0 to V3, RELIEF+, three one-field variants of ours, FedAvg (the 1.00x) and four bounds.

2 backbones, 2 datasets, both readings of a missing modality, 3 replicates."""


# One factor at a time; the moderate gap with one client per subject is the common point.
_FACTORS = (
    Level(name="moderate"),
    Level(name="gap10", settings={"fleet.gap": 10.0}),
    Level(name="gap100", settings={"fleet.gap": 100.0}),
    *(Level(name=f"n{number}", settings={"data.num_clients": number}) for number in (20, 50, 100)),
)


SENSITIVITY = Spec(
    name="sensitivity",
    title="Tables IV and V: heterogeneity gap and number of clients, five methods",
    methods=(*REPRESENTATIVE, *BOUNDS),
    axes=(backbones(CNN, LORA), Axis(name="factors", levels=_FACTORS)),
    settings=PAPER,
)
"""Tables IV and V: gaps between devices of 10, 55, 100, and 8 or 10, 20, 50, 100 clients.

Five methods, four bounds, 2 backbones, 2 datasets, 3 replicates."""


DIAGNOSTICS = Spec(
    name="diagnostics",
    title="Figs. 2 and 3: cosine and divergence of updates per block",
    methods=(REFERENCE, PROPOSED),
    datasets=("pamap2",),
    axes=(backbones(LORA, CNN),),
    seeds=(0,),
    settings={**PAPER, "record.pairwise_every": 1},
)
"""Fig. 2 (cosines of updates in pairs) and Fig. 3 (divergence over the phases of training).

FedAvg as in the paper, RELIEF beside it; PAMAP2 on both backbones, every round compared in pairs."""


def _two_devices(dataset: str, subjects: tuple[int, int]) -> Level:
    """Level with one subject each on Orin-1 (Type A, every sensor) and Orin-2 (Type C, accelerometer alone)."""
    settings = {
        "data.subjects": subjects,
        "fleet.types": {"A": {"share": 1}, "B": {"share": 0}, "C": {"share": 1}},
        "rounds": 100,
    }
    return Level(name="device", settings=settings, datasets=(dataset,))


_SCOPES = (
    _two_devices("pamap2", (101, 102)),
    _two_devices("mhealth", (1, 2)),
    _two_devices("dsa_within", (1, 2)),
    Level(name="fleet", settings={"rounds": 200}),
)


TESTBED = Spec(
    name="testbed",
    title="Section VII: testbed devices, per device (100 rounds) and as a fleet (200 rounds)",
    methods=(*REPRESENTATIVE, *BOUNDS),
    axes=(backbones(CNN, LORA), Axis(name="scopes", levels=_SCOPES)),
    settings={**PAPER, "fleet.preset": "testbed"},
)
"""Section VII: the testbed's devices; per-device profiling with two clients, the fleet with everyone.

Five methods, four bounds, 2 backbones, 2 datasets, 3 replicates; 100 rounds on two devices, 200 with the fleet."""


_COUPLINGS = tuple(
    Level(name=kind, settings={"fleet.coupling": kind}) for kind in ("coupled", "independent", "inverted")
)


COUPLING = Spec(
    name="coupling",
    title="which device owns which sensors: coupled, independent, inverted",
    methods=(REFERENCE, PROPOSED, *VARIANTS, "v2_mandatory", *BOUNDS),
    axes=(backbones(CNN), Axis(name="coupling", levels=_COUPLINGS)),
    settings=PAPER,
)
"""Our own: which device owns which sensors, the premise that the paper never varies.

FedAvg, V0 to V3, V2 with mandatory blocks, four bounds; slow devices have few sensors, any, or many; 3 replicates."""


_SLOTS = Level(name="slots3", settings={"strategy.slots_slowest": 3})


DSA_STUDY = Spec(
    name="dsa_study",
    title="RELIEF on held-out subjects: three rules of its budget, V1 to V3, one-field variants, 12 replicates",
    methods=(REFERENCE, PROPOSED, *VARIANTS, "v2_mandatory", "v3_mandatory"),
    datasets=("dsa",),
    axes=(backbones(CNN),),
    own={
        PROPOSED: (Level(name="count"), Level(name="time", settings={"strategy.fill": "time"}), _SLOTS),
        "v3_mandatory": (_SLOTS,),
    },
    replicates=tuple(range(12, 24)),
    settings={**SHORT, "evaluation.every": 1},
    claims=CLAIMS / "dsa_study.yaml",
)
"""Our main study: RELIEF's parts on held-out subjects of Daily and Sports Activities, 48 pairs for each claim.

FedAvg, V0 by three rules of the budget, V1 to V3, one-field variants; 4 folds x 12 replicates, 15 rounds of E = 2.
Replicates 0 and 1 were a pilot: margins and claims were chosen after it, so that the study
has others. Every round is tested, so that methods can be compared at equal seconds, joules and aggregations."""


SMOKE = Spec(
    name="smoke",
    title="twelve short cells on shipped real data: FedAvg, V0 (RELIEF) and V1, two folds, two seeds",
    methods=(REFERENCE, PROPOSED, V1),
    datasets=("dsa_mini_held_out",),
    folds=(0, 1),
    seeds=(0, 1),
    settings={**BRIEF, "rounds": 3, "evaluation.every": 1, "record.checkpoint_every": 1},
)
"""Twelve cells of a few seconds on the data that ship with the package: shows that a grid runs.

FedAvg, V0 and V1, two folds, two seeds, three rounds of an epoch, a window every 5 s of any data set."""
