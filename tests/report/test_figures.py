"""Figures: the right bars, files that show something, no trace in matplotlib's global state."""

import csv
import os
import sys
from dataclasses import replace

import pytest

from relief_ray.core.messages import RoundCost, StageTimes
from relief_ray.records.schema import MethodFacts
from relief_ray.report.comparison import compare_runs
from relief_ray.report.figures.progress import curve_points, curves
from relief_ray.report.figures.style import sheet, short
from relief_ray.report.figures.timeline import (
    MAX_BARS,
    Bar,
    Panel,
    busiest,
    draw_panels,
    featured,
    height_of,
    panel,
    timeline,
    timeline_figure,
    types_beside,
)
from relief_ray.support.errors import UserError

matplotlib = pytest.importorskip("matplotlib")


def ink(path):
    """Share of pixels that are not the background, and the number of colours."""
    image = matplotlib.image.imread(path)[..., :3]
    flat = image.reshape(-1, 3)
    return float((flat != 1.0).any(axis=1).mean()), len({tuple(p) for p in flat[::7].tolist()}), image.shape


@pytest.fixture
def pair(make, groups):
    return make("fedavg"), make("relief", round_s=1.0, energy_j=60.0, trained=groups, deadline_s=1.0)


def test_panel_by_hand(pair):
    """Device 2 of a 1 s round: download .25, forward .25, backward .125, optimizer .125, upload .25, no wait."""
    drawn = panel(pair[1], "split_naive")
    assert drawn.title == "relief", "the name that legends and tables have"
    assert [(b.name, b.kind, b.sensors) for b in drawn.bars] == [
        ("client 0", "A", "acc gyro mag"),
        ("client 1", "B", "acc gyro"),
        ("client 2", "C", "acc"),
    ]
    assert drawn.bars[2].seconds == (0.25, 0.25, 0.125, 0.125, 0.25, 0.0)
    assert [sum(b.seconds) for b in drawn.bars] == [1.0, 1.0, 1.0]
    assert (drawn.deadline_s, drawn.cost.energy_j) == (1.0, 60.0)


def test_many_devices_are_shown_by_the_busiest_of_each_type():
    many = [Bar(name=f"n{i}", kind="AB"[i % 2], sensors="", seconds=(1.0, float(i))) for i in range(MAX_BARS + 2)]
    assert [(b.name, b.kind, b.seconds) for b in busiest(many)] == [
        ("slowest of 7", "A", (1.0, 0.0)),
        ("slowest of 7", "B", (1.0, 1.0)),
    ]


@pytest.mark.ci
@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_timeline_is_written_and_repeats_to_the_byte(pair, tmp_path, suffix):
    first = timeline(pair, tmp_path / f"a{suffix}")
    second = timeline(pair, tmp_path / "new" / f"b{suffix}")
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size > 10_000


def test_timeline_shows_something(pair, tmp_path):
    share, num_colours, shape = ink(timeline(pair, tmp_path / "t.png"))
    assert shape[1] == round(7.16 * 200)
    assert 0.2 < share < 0.9
    assert num_colours > 20


def test_timeline_says_how_much_faster_and_where_the_time_went(pair, tmp_path):
    text = timeline(pair, tmp_path / "t.svg").read_text()
    for word in ("fedavg", "relief", "2.00× as fast, 40 % less energy", "T* = 1.00 s", "1.00 s saved", "(simulated)"):
        assert word in text
    for stage in ("download", "forward", "backward", "optimizer", "upload", "wait"):
        assert stage in text


def test_a_round_that_ends_after_its_budget_says_why(make, tmp_path):
    """``k_n`` counts groups, each at its device's mean time; other fillings of the budget keep to it in seconds."""

    def drawn(fill, deadline_s):
        settings = {"strategy": {"name": "relief", "select": "divergence", "mandatory": True, "fill": fill}}
        run = make("relief", round_s=1.0, deadline_s=deadline_s, extra=settings)
        return timeline([make("fedavg"), run], tmp_path / "t.svg").read_text()

    assert "T* = 0.60 s, each group at its device's mean time" in drawn("count", 0.6)
    assert "mean time" not in drawn("count", 1.2) and "mean time" not in drawn("time", 0.6)


def test_a_method_of_equal_cost_is_called_as_fast(make, tmp_path):
    text = timeline([make("fedavg"), make("fedprox")], tmp_path / "t.svg").read_text()
    assert "as fast, the same energy" in text and "0 %" not in text


def test_the_caption_says_how_long_clients_wait_and_for_whom(make):
    """The three wait 50, 25 and 0 % of a round; the last is of type C."""
    caption = timeline_figure(compare_runs([make("fedavg"), make("relief", deadline_s=1.0)])).caption
    assert "In fedavg's round type A waits 50 % and B 25 % of the time for C. In relief's round type A waits" in caption
    assert "T* is the deadline" in caption and "Over all rounds" not in caption


def test_who_takes_no_part_has_a_word_in_its_bar(make, tmp_path):
    """A client that is not there waits as one does that is done at once, for another reason."""
    run = make("relief")
    last = run.rounds[-1]
    ((clock, cost),) = last.costs.items()
    away = replace(cost.clients[0], times=StageTimes(), wait_s=2.0)
    alone = last.model_copy(update={"costs": {clock: replace(cost, clients=(away, *cost.clients[1:]))}})
    lone = replace(run, rounds=(*run.rounds[:-1], alone))
    texts = [timeline([make("fedavg"), each], tmp_path / "t.svg").read_text() for each in (run, lone)]
    assert [text.count("takes no part") for text in texts] == [0, 1]


def test_the_caption_says_where_the_whole_run_has_another_speed(make):
    """The last round takes half of FedAvg's; all rounds together a third of what they are charged for FedAvg."""
    runs = [make("fedavg"), make("relief", round_s=1.0, reference=(3.0, 100.0))]
    assert "Over all rounds relief is 3.00 times as fast as fedavg." in timeline_figure(compare_runs(runs)).caption


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("draw", [timeline, lambda runs, path: curves(compare_runs(runs), path)])
def test_no_figure_is_drawn_through_a_link(pair, tmp_path, link, draw):
    """Neither the picture nor the numbers beside it."""
    victim = tmp_path / "victim"
    victim.write_text("kept")
    for end in ("png", "csv"):
        link(victim, tmp_path / f"figure.{end}")
    draw(pair, tmp_path / "figure.png")
    assert victim.read_text() == "kept" and (tmp_path / "figure.png").read_bytes()[1:4] == b"PNG"


def test_any_number_of_rounds_is_drawn(pair, make, tmp_path):
    text = timeline([*pair, make("fedprox", round_s=4.0)], tmp_path / "t.svg").read_text()
    assert text.count(" J a round") == 3 and "0.50\N{MULTIPLICATION SIGN} as fast" in text
    assert "fedavg" in timeline(pair[:1], tmp_path / "one.svg").read_text()


def test_the_figure_is_about_relief_and_ones_own_methods(make):
    own = MethodFacts(name="FedAdam", title="FedAdam", kind="own")
    runs = [make(m, seed=s) for m in ("fedavg", "fedprox", "v1", "relief") for s in (0, 1)]
    runs += [make("FedAdam", seed=1, facts=own)]
    assert [r.label for r in featured(compare_runs(runs))] == ["fedavg", "relief", "FedAdam"]
    assert {r.replicate for r in featured(compare_runs(runs))} == {(0, 0, 1)}, "a seed that all of them have"
    spread = [make(m, seed=s, scores=(0.5, f1)) for m in ("fedavg", "relief") for s, f1 in enumerate((0.9, 0.4, 0.6))]
    assert {r.replicate for r in featured(compare_runs(spread))} == {(0, 0, 2)}, "the median of RELIEF's F1"
    assert [r.label for r in featured(compare_runs(runs[:4]))] == ["fedavg", "fedprox"]
    assert [r.label for r in featured(compare_runs(runs[:2]))] == ["fedavg"]


def crowd(name, deadline_s=0.98):
    """Panel of a fleet of 24 in three types whose slowest devices stand for it, with long names."""
    seconds = (0.45, 0.02, 0.03, 0.0, 0.45, 0.05)
    bars = tuple(Bar(name="slowest of 8", kind=k, sensors="acc gravity gyro", seconds=seconds) for k in "ABC")
    cost = RoundCost(round_s=1.0, energy_j=50.0, clients=())
    return Panel(title=name, bars=bars, cost=cost, deadline_s=deadline_s)


def test_no_text_of_a_large_fleet_lies_on_another_or_leaves_the_sheet(make):
    """The label beside the legend, panels' titles above ticks, T* at the right end, types left of devices."""
    agg = pytest.importorskip("matplotlib.backends.backend_agg")
    parts = [crowd("FedAvg", None), crowd("RELIEF"), crowd("A method with a long name")]
    made_up = make("relief", origin="SYNTHETIC", extra={"data": {"name": "mine:WALKS OF MANY PEOPLE"}})
    with sheet(height_of(parts)) as figure:
        draw_panels(figure, parts, made_up, "flop_proportional")
        agg.FigureCanvasAgg(figure).draw()
        artists = [t for t in figure.findobj(matplotlib.text.Text) if t.get_text().strip() and t.get_visible()]
        boxes = [(t.get_text(), t.get_window_extent()) for t in artists]
        width, height = figure.get_size_inches() * figure.dpi
    assert any("SYNTHETIC data: WALKS OF MANY PEOPLE" in text for text, _ in boxes)
    # Ticks beyond the end of the axis are texts too, but not drawn.
    inside = [(t, b) for t, b in boxes if b.width and b.height and not (t[0].isdigit() and b.x0 > width)]
    assert sum("T* = 0.98 s" in t for t, _ in inside) == 2 and any("slowest of 8" in t for t, _ in inside)
    for text, box in inside:
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1, text
    for i, (text, box) in enumerate(inside):
        for other, theirs in inside[i + 1 :]:
            assert not (box.shrunk(0.9, 0.8).overlaps(theirs.shrunk(0.9, 0.8))), (text, other)


def test_a_slower_method_is_called_slower(make, tmp_path):
    slow = make("relief", round_s=4.0, energy_j=150.0)
    assert "0.50× as fast, 50 % more energy" in timeline([make("fedavg"), slow], tmp_path / "t.svg").read_text()


def test_an_unknown_data_set_still_has_bars(make):
    strange = make("fedavg", extra={"data": {"name": "mine", "split": "x", "fold": 0, "stride_s": 1.0}})
    assert [(b.name, b.kind) for b in panel(strange, "split_naive").bars] == [(f"client {n}", "") for n in (0, 1, 2)]


def test_synthetic_data_are_named_in_the_figure(make, tmp_path):
    runs = [make("fedavg", origin="SYNTHETIC"), make("relief", origin="SYNTHETIC")]
    assert "SYNTHETIC data: DSA" in timeline(runs, tmp_path / "t.svg").read_text()


def test_pdf_embeds_its_fonts(pair, tmp_path):
    data = timeline(pair, tmp_path / "t.pdf").read_bytes()
    assert b"/FontFile2" in data and b"/Type3" not in data


def test_bad_requests_are_named(pair, tmp_path):
    with pytest.raises(UserError, match="no round 9, the run holds rounds up to 2"):
        timeline(pair, tmp_path / "t.png", round_=9)
    with pytest.raises(UserError, match="no clock 'moon'; recorded are split_naive"):
        timeline(pair, tmp_path / "t.png", clock="moon")
    with pytest.raises(UserError, match=r"figures are written as \.pdf"):
        timeline(pair, tmp_path / "t.bmp")


def test_without_matplotlib_the_extra_is_named(pair, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match="install the extra `server`"):
        timeline(pair, tmp_path / "t.png")


def test_global_state_is_left_alone(family, pair, tmp_path):
    before, had_pyplot = dict(matplotlib.rcParams), "matplotlib.pyplot" in sys.modules
    timeline(pair, tmp_path / "t.png")
    curves(compare_runs(family), tmp_path / "c.png")
    assert dict(matplotlib.rcParams) == before
    assert ("matplotlib.pyplot" in sys.modules) == had_pyplot


def test_curve_points_by_hand(make):
    runs = [
        make("fedavg", scores=(0.4, 0.6)),
        make("fedavg", scores=(0.5, 0.8), seed=1),
        make("relief", round_s=1.0, energy_j=60.0, scores=(0.3, 0.9)),
        make("central"),
    ]
    by_round = {(p.method, p.round): p for p in curve_points(compare_runs(runs)).itertuples()}
    assert {m for m, _ in by_round} == {"fedavg", "relief"}
    two = by_round["fedavg", 2]
    assert (two.f1_percent, two.time_s, two.energy_j, two.num_runs) == (pytest.approx(70.0), 4.0, 200.0, 2)
    assert two.std == pytest.approx(200**0.5)
    first = by_round["relief", 1]
    assert (first.f1_percent, first.time_s, first.energy_j, first.std) == (30.0, 1.0, 60.0, 0.0), "its bootstrap"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("number", "last"), [pytest.param(2, 64.5, id="with bands"), pytest.param(6, 55.5, id="lines")]
)
def test_curves_are_drawn_with_their_numbers_beside(family, tmp_path, number, last):
    comparison = compare_runs(family[:number])
    share, num_colours, _ = ink(curves(comparison, tmp_path / "c.png"))
    assert share > 0.02
    assert num_colours > 8
    with (tmp_path / "c.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["method"], int(r["round"])) for r in rows] == [
        (p.method, p.round) for p in curve_points(comparison).itertuples()
    ]
    assert float(rows[-1]["f1_percent"]) == pytest.approx(last)
    assert all(row["bytes_up"].isdecimal() for row in rows), "bytes are counted"


def test_every_device_has_its_type_beside_it_also_where_types_alternate():
    bars = [Bar(f"client {n}", kind, "acc", (1.0,) * 6, n) for n, kind in enumerate("ABBA")]
    assert [(first, last, text.replace("\n", " ")) for first, last, text in types_beside(bars)] == [
        (0, 0, "Type A, acc"), (1, 2, "Type B acc"), (3, 3, "Type A, acc"),
    ]  # fmt: skip
    assert types_beside([Bar("client 0", "", "", (1.0,) * 6)]) == []


def test_long_names_keep_their_ends_and_leave_room(make, tmp_path):
    """51 letters of a method of one's own, and its twin with another end."""
    assert (short("relief"), short("a" * 32)) == ("relief", "a" * 32)
    assert short("MyVeryOwnAggregation" + "x" * 25 + "Median") == "MyVeryOwnAggrega..xxxxxxxxMedian"
    names = [f"MyVeryOwnAggregationThatGoesOnAndOnForEver{end}" for end in ("Mean", "Median")]
    runs = [make("fedavg"), *(make(name, facts=MethodFacts(name=name, title=name, kind="own")) for name in names)]
    for draw in (curves, lambda comparison, path: timeline(comparison.runs, path)):
        draw(compare_runs(runs), tmp_path / "long.svg")
        text = (tmp_path / "long.svg").read_text()
        assert all(short(name) in text and name not in text for name in names)
