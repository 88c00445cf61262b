"""Committed cells in tables and figures: what they hold is shown, what they lack is said."""

import pytest

from relief_ray.records.committed import condense, write_committed
from relief_ray.report.build import build
from relief_ray.report.comparison import compare_runs
from relief_ray.report.document import Paragraphs
from relief_ray.report.figures.timeline import panel
from relief_ray.report.runs import load_runs, take_inventory
from relief_ray.report.tables.methods import all_tables
from relief_ray.support.errors import UserError


def cells_of(runs):
    """Cells by name, each with a hash of its own, which the hand-made records lack."""
    cells = [(f"{r.label}-s{r.replicate[2]}", condense(r.run, r.rounds)) for r in runs]
    return [(name, cell.model_copy(update={"config_hash": name})) for name, cell in cells]


@pytest.fixture
def runs(family, put_on):
    return [put_on(r, by_paper=False, where=r.label) for r in family]


@pytest.fixture
def small(runs, tmp_path):
    return write_committed(tmp_path / "small" / "cells.json", "six cells", cells_of(runs)).parent


def stats(comparison, label):
    return {name: stat.mean for name, stat in comparison.row(label).stats.items()}


def test_a_committed_cell_gives_the_figures_of_its_run_folder(runs, small):
    """All but what single clients did: the largest upload and slots."""
    whole, condensed = compare_runs(runs), compare_runs(load_runs([small]))
    for label in ("fedavg", "relief", "v1", "v3"):
        mine, theirs = stats(condensed, label), stats(whole, label)
        lacking = {"up_max_mib", "free_slots", "chosen_slots"}
        assert {k: v for k, v in theirs.items() if k not in lacking} == pytest.approx(
            {k: v for k, v in mine.items() if k not in lacking}
        )
        assert condensed.row(label).f1 == whole.row(label).f1
    # RELIEF spends 120 J in all; FedAvg has 50 % after 100 J and 54.5 % after 200 J.
    assert stats(condensed, "fedavg")["f1_at_joules_percent"] == pytest.approx(50.9)
    assert [r.metrics.f1_rare for r in load_runs([small])[0].rounds] == pytest.approx([0.1, 0.1])


def test_rounds_of_clients_with_models_of_their_own_keep_the_fleets_f1(make, tmp_path):
    run = make("fedlease", scores=(0.8, 0.9), own=(0.3, 0.5))
    write_committed(tmp_path / "cells.json", "one cell", cells_of([run]))
    (small,) = load_runs([tmp_path])
    assert [r.metrics.headline for r in small.rounds] == [0.3, 0.5]


def test_costs_have_their_columns(small):
    assert {"compute", "link %", "up, MiB", "wall, s"} <= {*all_tables(compare_runs(load_runs([small])))[1].head}


def test_a_report_of_committed_cells_draws_what_they_hold_and_says_what_they_lack(small):
    document = build(take_inventory([small]))
    assert document.lead == "six cells: 6 cells, all done, 1 setting."
    slugs = {f.slug for f in document.figures}
    assert {"e1-convergence", "e1-pareto", "e1-modalities", "e1-rare", "e1-round"} <= slugs
    assert not {"e1-allocation", "e1-devices"} & slugs
    for slug in ("e1-main", "e1-ablation", "e1-paper"):
        table = next(t for t in document.tables if t.slug == slug)
        empty = [h for i, h in enumerate(table.head[1:]) if all(row.cells[i].text == "-" for row in table.rows)]
        assert [h for h in empty if not h.startswith("rounds to 85 %")] == [], "none of a figure that no cell holds"
    lines = [line for b in document.blocks if isinstance(b, Paragraphs) for line in b.lines]
    assert any(line.startswith("Read from a summary of finished runs (`cells.json`)") for line in lines)


def test_a_committed_cell_gives_the_timeline_of_its_run_folders_last_round(runs, small):
    """Seconds of each client and stage, what it waits, and T*; of earlier rounds nothing is known."""
    for whole, cell in zip(runs, load_runs([small]), strict=True):
        clock = whole.run.planning_model
        theirs, mine = panel(whole, clock), panel(cell, clock)
        assert [bar.client for bar in mine.bars] == [bar.client for bar in theirs.bars] == [0, 1, 2]
        assert all(m.seconds == pytest.approx(t.seconds) for m, t in zip(mine.bars, theirs.bars, strict=True))
        assert (mine.deadline_s, mine.cost.round_s) == (theirs.deadline_s, pytest.approx(theirs.cost.round_s))
        with pytest.raises(UserError, match="a committed cell, which has no devices but in its last round"):
            panel(cell, clock, 1)


def test_tries_of_a_search_count_as_untested(make, put_on, tmp_path):
    run = put_on(make("fedavg"), by_paper=False)
    cell = condense(run.run, run.rounds)
    rows = tuple(r.model_copy(update={"f1": None}) for r in cell.rounds)
    tried = cell.model_copy(update={"metrics": None, "rounds": rows})
    (item,) = take_inventory([write_committed(tmp_path / "cells.json", "t", [("a", tried)])]).items
    assert (item.status, item.why) == ("untested", "validation scores are in the run folder alone")
