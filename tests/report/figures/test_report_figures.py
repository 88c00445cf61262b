"""Figures show values computed by hand; each draws something; few are told apart by colour alone."""

import dataclasses
import itertools
import re

import pandas as pd
import pytest

from relief_ray.report.build import build
from relief_ray.report.comparison import by_setting
from relief_ray.report.figures import style
from relief_ray.report.figures.devices import (
    MAX_CLIENTS,
    allocation,
    by_phase,
    chosen,
    cosine,
    devices,
    pair_means,
    phases,
    series,
    traces,
)
from relief_ray.report.figures.progress import (
    below,
    curve_points,
    ends,
    floor,
    front,
    modalities,
    pareto,
    progress,
    rare,
    span,
)
from relief_ray.report.figures.style import at_most, drawn, part_of, save, sheet, small_print, spread, styles
from relief_ray.report.figures.timeline import timeline_figure
from relief_ray.report.remarks import device_shares
from relief_ray.strategies import PRESETS, method_name
from tests.report.conftest import STRATEGIES

PAIRS = {"fusion.A.acc": ((0, 1, 0.8), (0, 2, -0.2), (1, 2, 0.0)), "head.1": ((0, 1, 1.0),)}
MAKERS = (progress, rare, pareto, modalities, cosine, traces, allocation, devices, timeline_figure)


@pytest.fixture(scope="module")
def experiment(make, family, put_on, inventory_of):
    compared = make("fedavg", scores=(0.50, 0.545), pairwise=PAIRS)
    others = [put_on(r) for r in family if r.label != "fedavg"]
    return by_setting(inventory_of([put_on(compared), *others]))[0]


@pytest.mark.parametrize("maker", MAKERS, ids=lambda m: m.__name__)
def test_every_figure_draws_and_keeps_its_data(experiment, maker):
    pytest.importorskip("matplotlib")
    plot = maker(experiment)
    assert plot is not None and plot.rows and all(len(r) == len(plot.columns) for r in plot.rows)
    with sheet(plot.height_in) as figure:
        plot.draw(figure)
        assert figure.axes and any(ax.has_data() for ax in figure.axes)
        word_table = [t.get_text() for t in figure.texts]
    assert any("torch 2.13.0" in w and "DSA (real)" in w and "sources" in w for w in word_table), "the footer"


def test_no_runs_no_figures(make, inventory_of):
    assert build(inventory_of([], [(make("fedavg"), "planned")])).figures == ()


@pytest.mark.parametrize("maker", [progress, rare, pareto, devices], ids=lambda m: m.__name__)
def test_nothing_is_cut_where_scores_reach_100(make, put_on, inventory_of, maker):
    agg = pytest.importorskip("matplotlib.backends.backend_agg")
    runs = [put_on(make(v, scores=(0.99, 1.0), rare={"1": 1.0, "2": 1.0})) for v in ("fedavg", "relief")]
    plot = maker(by_setting(inventory_of(runs))[0])
    with sheet(plot.height_in) as figure:
        plot.draw(figure)
        agg.FigureCanvasAgg(figure).draw()
        first = figure.axes[0]
        assert first.yaxis.label.get_window_extent().x0 >= 0
        if maker is devices:
            assert first.get_ylim()[1] > max(bar.get_y() + bar.get_height() for bar in first.patches)
            return
        assert [t for t in first.get_yticks() if first.get_ylim()[0] <= t <= first.get_ylim()[1]][-1] == 100
        assert 100 < first.get_ylim()[1] < 101, "markers at 100 are whole"


def test_the_front_by_hand():
    assert front([(3, 5.0), (1, 2.0), (2, 1.0), (3, 6.0), (4, 6.0)]) == [(1, 2.0), (3, 6.0)]
    assert front([]) == []


def test_a_far_bound_does_not_squeeze_the_frame(experiment):
    frame = ends(experiment)
    low = frame.iloc[[0]].assign(method="local", is_bound=True, f1_percent=1.0)
    assert span(pd.concat([frame, low])) == span(frame)
    both = pd.concat([frame, low])
    assert below(both, span(both)[0]) == " Below the frame: `local` 1.0 %." and below(frame, span(frame)[0]) == ""


def test_phases_are_fifths_of_the_planned_rounds(make):
    """Divergence of round n is 1 + n in the hand-made records; ten rounds make two per phase."""
    loaded = make("fedavg", scores=(0.5,) * 10)
    found = by_phase([loaded])
    assert {phase: found["fusion.A.acc", phase] for phase in range(1, 6)} == {
        p: [2.0 * p, 2.0 * p + 1] for p in range(1, 6)
    }


def test_phases_need_five_rounds(make, put_on, inventory_of):
    def drawn_of(number):
        runs = [put_on(make("fedavg", scores=(0.5,) * number))]
        return phases(by_setting(inventory_of(runs))[0])

    assert drawn_of(4) is None
    figure = drawn_of(5)
    with sheet(figure.height_in) as canvas:
        figure.draw(canvas)
        assert [len(line.get_xdata()) for line in canvas.axes[0].get_lines()][:1] == [5]


def test_curves_have_the_same_rounds_for_every_method(experiment):
    pytest.importorskip("matplotlib")
    rounds = curve_points(experiment).groupby("method", observed=True)["round"].agg(list)
    assert rounds.to_dict() == {label: [1, 2] for label in STRATEGIES}
    plot = progress(experiment)
    assert list(plot.views) == ["rounds", "seconds", "joules", "MiB"]
    with sheet(plot.height_in) as canvas:
        plot.views["rounds"](canvas)
        curves, gains = canvas.axes
        lines = {line.get_gid(): tuple(line.get_xdata()) for line in curves.lines}
        assert {lines[part_of(experiment, label, "curve")] for label in STRATEGIES} == {(1, 2)}
        words = [text.get_text() for text in gains.texts]
    assert words[0].startswith("relief  +5.0") and "after as many rounds" in gains.get_xlabel()


def test_rare_f1_is_drawn_round_by_round(make, put_on, inventory_of):
    def falling(loaded):
        rounds = tuple(
            r.model_copy(
                update={"metrics": r.metrics and r.metrics.model_copy(update={"f1_rare": 0.3 - 0.1 * r.round})}
            )
            for r in loaded.rounds
        )
        return dataclasses.replace(loaded, rounds=rounds)

    experiment = by_setting(inventory_of([put_on(falling(make("fedavg")))]))[0]
    rows = [dict(zip(rare(experiment).columns, row, strict=True)) for row in rare(experiment).rows]
    assert [row["f1_percent"] for row in rows] == pytest.approx([20.0, 10.0])


def test_no_marker_is_cut_by_the_frame(make, put_on, inventory_of):
    """Three methods of equal cost: their markers stand at the largest seconds of all."""
    agg = pytest.importorskip("matplotlib.backends.backend_agg")
    runs = [put_on(make(m)) for m in ("fedavg", "fedprox", "fedel")]
    plot = pareto(by_setting(inventory_of(runs))[0])
    with sheet(plot.height_in) as canvas:
        plot.draw(canvas)
        agg.FigureCanvasAgg(canvas).draw()
        for ax in canvas.axes:
            points = [line for line in ax.lines if line.get_marker() not in ("None", "|", None, "")]
            assert points
            for line in points:
                x = ax.transData.transform((line.get_xdata()[0], line.get_ydata()[0]))[0]
                assert x + line.get_markersize() * canvas.dpi / 72 / 2 < ax.get_window_extent().x1


def test_a_front_of_one_method_is_named_in_words(make, put_on, inventory_of):
    """A line between trade-offs needs two methods: FedProx ends above FedAvg at the same cost, or costs more too."""
    for round_s, words in ((2.0, "No federated method ends above `fedprox`"), (3.0, "Line: Pareto front")):
        runs = [put_on(make("fedavg")), put_on(make("fedprox", scores=(0.5, 0.7), round_s=round_s))]
        assert words in pareto(by_setting(inventory_of(runs))[0]).caption


def test_the_marker_of_a_method_that_sends_nothing_is_whole(make, put_on, inventory_of):
    """It stands on the axis at 0 MiB, where the frame would cut its left half; below the frame nothing is drawn."""
    runs = [put_on(make("fedavg")), put_on(make("local", up_bytes=0)), put_on(make("full_only", scores=(0.1, 0.05)))]
    comparison = by_setting(inventory_of(runs))[0]
    plot = pareto(comparison)
    with sheet(plot.height_in) as canvas:
        plot.views["MiB"](canvas)
        points = {line.get_gid(): line for line in canvas.axes[0].lines}
        sends_nothing, far_below = (points[part_of(comparison, label, "dot")] for label in ("local", "full_only"))
        assert sends_nothing.get_xdata()[0] == 0 and not sends_nothing.get_clip_on()
        assert far_below.get_clip_on() and "Below the frame: `full_only`" in plot.caption


def test_names_of_methods_of_equal_cost_stand_apart(make, put_on, inventory_of):
    """FedAvg, FedProx and FedEL end at the same place: their names stand below each other, in the order of F1."""
    agg = pytest.importorskip("matplotlib.backends.backend_agg")
    labels = ("fedavg", "fedprox", "fedel")
    comparison = by_setting(inventory_of([put_on(make(m)) for m in labels]))[0]
    for plot in (pareto(comparison), progress(comparison)):
        for view in plot.views.values():
            with sheet(plot.height_in) as canvas:
                view(canvas)
                agg.FigureCanvasAgg(canvas).draw()
                names = [t for t in canvas.axes[0].texts if t.get_text() in labels]
                boxes = sorted((t.get_window_extent() for t in names), key=lambda box: box.y0)
                assert len(boxes) == 3
                assert all(low.shrunk(1, 0.8).y1 <= high.shrunk(1, 0.8).y0 for low, high in itertools.pairwise(boxes))
                assert boxes[-1].x1 <= canvas.bbox.x1


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([1.0, 3.0], [1.0, 3.0]),
        ([1.0, 1.0, 1.0], [0.5, 1.0, 1.5]),
        ([1.0, 1.2, 1.6], [0.7667, 1.2667, 1.7667]),
        ([9.9, 10.0], [9.5, 10.0]),
        ([8.9, 9.9, 10.0], [8.9, 9.5, 10.0]),
        ([], []),
    ],
)
def test_names_are_spread_as_little_as_needed(wanted, expected):
    """Half a unit apart, none above 10; [1, 1.2] becomes [0.85, 1.35], which touches 1.6: three around their mean."""
    assert spread(wanted, 0.5, 10.0) == pytest.approx(expected, abs=1e-4)


def test_groups_that_each_client_trained_begin_with_the_bootstrap(make, groups, put_on, inventory_of):
    """In round 1 device 2 trains the three groups that it reaches, in round 2 one of them."""
    trained = {**groups, 2: ("fusion.A.acc",)}
    comparison = by_setting(inventory_of([put_on(make(m, trained=trained)) for m in ("relief", "v1")]))[0]
    plot = allocation(comparison)
    assert plot.caption.endswith(" Round 1 is the bootstrap. Fusion blocks of a client's own modalities are mandatory.")
    assert [row for row in plot.rows if row[0] == 2] == [
        (2, "fusion.A.acc", 1), (2, "fusion.B", 1), (2, "head.1", 1), (2, "fusion.A.acc", 2),
    ]  # fmt: skip
    other = allocation(comparison, "v1")
    assert "bootstrap" not in other.caption and [row for row in other.rows if row[0] == 2] == [
        (2, "fusion.A.acc", 1), (2, "fusion.A.acc", 2),
    ]  # fmt: skip


def test_differences_stand_below_the_curves(make, put_on, inventory_of):
    labels = ("fedavg", "fedprox", "fedel", "relief")
    runs = [put_on(make(m, seed=s, scores=(0.4, 0.5 + 0.1 * s)), where=f"{m}{s}") for m in labels for s in (0, 1)]
    plot = progress(by_setting(inventory_of(runs))[0])
    with sheet(plot.height_in) as canvas:
        plot.draw(canvas)
        below = canvas.axes[1]
        words = [text.get_text() for text in below.texts]
    assert words[0].startswith("fedprox  +0.0") and len(words) == 3, "a row for each but FedAvg"
    assert "mean of 2 runs" in plot.caption and "95 % intervals" in plot.caption
    alone = progress(by_setting(inventory_of([put_on(make(m)) for m in labels]))[0])
    assert "mean" not in alone.caption


def test_series_average_over_runs_round_by_round(make):
    runs = [make("relief"), make("relief", seed=1)]
    means = series(runs, "divergence")
    assert {n: mean for (block, n), mean in means.items() if block == "fusion.A.acc"} == {1: 2.0, 2: 3.0}


def test_cosines_are_averaged_and_other_groups_left_out(make):
    means = pair_means([make("fedavg", pairwise=PAIRS)])
    assert means == {
        ("fusion.A.acc", 0, 1): pytest.approx(0.8),
        ("fusion.A.acc", 0, 2): pytest.approx(-0.2),
        ("fusion.A.acc", 1, 2): 0.0,
    }


def test_shares_of_a_round_by_hand(make):
    """Device 2 (Type C) of a 2 s round: compute .5 + .25 + .25, link 1, no wait; joules a third of the fleet's."""
    shares = {s.kind: s for s in device_shares([make("fedavg")], "split_naive")}
    assert (shares["C"].compute_s, shares["C"].link_s, shares["C"].wait_s) == (1.0, 1.0, 0.0)
    assert shares["C"].energy_j == pytest.approx(100 / 3) and shares["C"].num_devices == 1
    assert shares["A"].wait_s == 1.0


def test_too_many_clients_are_shown_by_type():
    many = list(range(MAX_CLIENTS + 1))
    assert chosen(many, {n: "AB"[n % 2] for n in many}) == [0, 1]
    assert chosen([2, 3], {}) == [2, 3]


def test_every_method_can_be_told_apart_without_colour():
    labels = [f"m{i}" for i in range(16)]
    looks = {(s.marker, s.markerfacecolor == "white") for s in styles(labels).values()}
    assert len(looks) == 16


def test_no_two_methods_look_the_same_however_many_there_are():
    labels = [*(method_name(config, label) for label, config in PRESETS.items()), *(f"m{i}" for i in range(60))]
    look = styles(labels)
    assert len({(s.color, s.marker, s.markerfacecolor) for s in look.values()}) == len(set(labels)) > 80
    assert look["full_only"].marker != look["local"].marker, "bounds are all grey and hollow"


def test_the_front_names_methods_that_have_no_place_in_it(make, put_on, inventory_of):
    """Pooled training has no fleet, so no costs: without a word a reader would look for its point."""
    runs = [put_on(make(m)) for m in ("fedavg", "fedprox", "central")]
    caption = pareto(by_setting(inventory_of(runs))[0]).caption
    assert "Not drawn (on one device with all data, so without the fleet's costs): `central` 60.0 %." in caption
    assert "Not drawn" not in pareto(by_setting(inventory_of(runs[:2]))[0]).caption


def test_methods_of_a_figure_share_no_colour_and_none_has_that_of_the_bounds():
    labels = ["mine", *(method_name(config, label) for label, config in PRESETS.items())]
    look = styles(labels)
    assert len({look[label].color for label in at_most(6, labels)}) == 6
    assert (look["fedavg"], look["relief"]) == tuple(styles(["relief", "fedavg"])[v] for v in ("fedavg", "relief"))
    red, green, blue = zip(*((int(s.color[i : i + 2], 16) for i in (1, 3, 5)) for s in look.values()), strict=True)
    assert all(max(c) - min(c) > 40 or max(c) == 0 for c in zip(red, green, blue, strict=True)), "grey is for bounds"


def test_at_most_six_lines_the_paper_s_first(experiment):
    assert drawn(experiment, STRATEGIES) == ["fedavg", "relief", "v1", "v2", "v3", "v2_mandatory"]
    assert drawn(experiment, ["v3", "relief"]) == ["relief", "v3"]


@pytest.mark.parametrize("maker", [progress, rare, modalities], ids=lambda m: m.__name__)
@pytest.mark.parametrize("most", [1, 3, 6])
def test_a_caption_counts_the_methods_that_its_file_has_and_the_picture_lacks(experiment, maker, most, monkeypatch):
    """Whichever methods have no value of that kind: they are in neither."""
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(style, "_MAX_METHODS", most)
    plot = maker(experiment)
    with sheet(plot.height_in) as figure:
        plot.draw(figure)
        shown = {t.get_text() for each in figure.legends for t in each.get_texts()} or {
            text.get_text() for text in figure.axes[0].texts if (text.get_gid() or "").endswith("-name")
        }
    in_file = {row[0] for row in plot.rows}
    more = re.search(r"(\d+) more methods? in the CSV file", plot.caption)
    assert shown <= in_file and len(shown) == min(most, len(in_file))
    assert len(in_file) - len(shown) == (int(more[1]) if more else 0)


def test_methods_without_a_rare_f1_are_not_said_to_be_in_its_file(make, family, put_on, inventory_of):
    def lacking(loaded):
        rounds = [r.model_copy(update={"metrics": r.metrics and r.metrics.model_copy(update={"f1_rare": None})})
                  for r in loaded.rounds]  # fmt: skip
        return dataclasses.replace(loaded, rounds=tuple(rounds))

    runs = [put_on(r if r.label in ("fedavg", "relief") else lacking(r)) for r in family]
    plot = rare(by_setting(inventory_of(runs))[0])
    assert {row[0] for row in plot.rows} == {"fedavg", "relief"} and "more method" not in plot.caption


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_a_letter_that_no_font_has_is_no_box(tmp_path, suffix):
    """Classes and sensors are called as their owner likes; matplotlib warns of every box."""
    pytest.importorskip("matplotlib")
    with sheet(1.0) as figure:
        names = ("走る", "漢字\n腕 ±1", "plain", "é ± µ", "산책", "\U0001f3c3")
        texts = [figure.text(0.1, 0.1, name) for name in names]
        ticks = figure.add_subplot()
        ticks.set_xticks(range(3), names[:3])
        save(figure, tmp_path / f"x{suffix}")
        written = [text.get_text() for text in texts]
        assert [tick.get_text() for tick in ticks.get_xticklabels()] == written[:3]
    assert written[2:4] == ["plain", "é ± µ"] and written[1].endswith("±1") and "\n" in written[1]
    pairs = zip(names, written, strict=True)
    assert all(shown == name or "\\u" in shown.lower() for name, shown in pairs)


def test_where_there_is_no_room_ones_own_method_stays_and_then_the_papers_five():
    labels = ["mine", *(method_name(config, label) for label, config in reversed(PRESETS.items()))]
    assert at_most(6, labels) == ["fedavg", "fedel", "darkdistill", "harmony", "relief", "mine"]
    assert at_most(3, ["mine", "pilot", "fedprox", "v1"]) == ["fedprox", "v1", "mine"]


def test_the_footer_names_every_program(make, put_on, inventory_of):
    runs = [put_on(make("fedavg", seed=s), digest=d * 64, where=d) for s, d in enumerate("ab")]
    experiment = by_setting(inventory_of(runs))[0]
    assert small_print(experiment.runs, "split_naive").startswith("clock split_naive (simulated) | 2 runs of fedavg |")
    assert small_print(experiment.runs[:1]).startswith("fedavg, fold 0, seed 0 |")
    both = [*experiment.runs, put_on(make("relief"), digest="c" * 64, where="c")]
    assert small_print(both).startswith("3 runs |")
    assert small_print(experiment.runs).endswith("sources aaaaaaaa and bbbbbbbb")


def points(**scores):
    rows = [(m, 5 * i, f) for m, row in scores.items() for i, f in enumerate(row, 1)]
    return pd.DataFrame(rows, columns=["method", "round", "f1_percent"])


def test_two_points_at_three_percent_do_not_squeeze_the_others():
    frame = points(
        fedavg=(84.0, 87.0, 89.0), relief=(87.0, 88.5, 87.7), fedel=(75.7, 81.6, 85.5), harmony=(2.9, 3.0, 88.4)
    )
    assert 70 < floor(frame) < 75.7
    assert below(frame, floor(frame)) == " Below the frame: `harmony` 2.9 % at round 5 and `harmony` 3.0 % at round 10."


def test_where_a_method_ends_is_never_cut_off_and_an_even_spread_is_whole():
    frame = points(fedavg=(84.0, 87.0, 89.0), relief=(87.0, 88.5, 87.7), low=(3.0, 3.0, 3.0))
    assert floor(frame) is None and below(frame, floor(frame)) == ""
    assert floor(points(a=(10.0, 40.0, 70.0), b=(20.0, 50.0, 80.0))) is None


@pytest.fixture(scope="module")
def seconds(make, put_on, inventory_of):
    """Rounds of 1.47 s: the axis of seconds has two decimals, so its labels are wide."""
    return by_setting(inventory_of([put_on(make("fedavg", round_s=1.47)), put_on(make("relief", round_s=0.79))]))[0]


def test_wide_numbers_leave_room_for_the_label_of_seconds(seconds):
    test_no_label_leaves_the_sheet(seconds, devices)


@pytest.mark.ci
@pytest.mark.parametrize("maker", MAKERS, ids=lambda m: m.__name__)
def test_no_label_leaves_the_sheet(experiment, maker):
    agg = pytest.importorskip("matplotlib.backends.backend_agg")
    plot = maker(experiment)
    with sheet(plot.height_in) as figure:
        plot.draw(figure)
        agg.FigureCanvasAgg(figure).draw()
        width, height = figure.get_size_inches() * figure.dpi
        for ax in figure.axes:
            for axis in (ax.xaxis, ax.yaxis):
                box = axis.label.get_window_extent()
                if axis.label.get_text() and axis.label.get_visible():
                    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, axis.label.get_text()
