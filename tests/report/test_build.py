"""The whole page: complete, partial, empty, of two programs; always one file that needs no other."""

import re

import pytest

from relief_ray.records.schema import MethodFacts
from relief_ray.report.build import build, write
from relief_ray.report.document import Document, Figure, Paragraphs
from relief_ray.report.formats.pages import html, markdown
from relief_ray.support.errors import UserError
from relief_ray.support.table import Table


def sheet(document, slug):
    return next(s for s in document.tables if s.slug == slug)


def texts(document):
    return [line for b in document.blocks if isinstance(b, Paragraphs) for line in b.lines]


def row(table, name):
    return next(line for line in table.rows if line.name == name)


@pytest.mark.parametrize("name", ["report", "report/tables", "report/figures"])
def test_a_report_is_never_written_through_a_link(tmp_path, name):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=f"{name}: is a link to "):
        write(Document(title="", lead="", sections=(), footer=""), tmp_path / "report")
    assert not any((tmp_path / "elsewhere").iterdir())


def test_a_full_family_has_its_tables_claims_and_figures(usual_report):
    assert {s.slug for s in usual_report.tables} >= {
        "cells",
        "settings",
        "origins",
        "e1-main",
        "e1-ablation",
    }
    assert {p.slug for p in usual_report.figures} >= {
        "e1-convergence",
        "e1-pareto",
        "e1-allocation",
        "e1-devices",
        "e1-round",
    }
    main = sheet(usual_report, "e1-main")
    assert [line.name for line in main.rows] == ["fedavg", "relief", "v1", "v2", "v3", "v2_mandatory"]
    assert row(main, "relief").cells[1].text == "59.5" and not any(e.below for e in row(main, "relief").cells[:2])
    assert usual_report.lead == "a grid: 6 cells, all done, 1 setting." and usual_report.title == "Results on DSA"


def test_the_settings_have_the_users_own_fields_and_device_types(make, put_on, inventory_of):
    """Where nothing was fitted to the paper's figures, no sentence says so."""
    strategy, fleet = {"name": "mine:Mine", "beta": 0.9}, {"types": {"hub": {"tops": 20.0, "active_power_w": 9.0}}}
    extra = {"strategy": strategy, "fleet": fleet, "data": {"name": "own:DATA", "split": "within_subject"}}
    document = build(
        inventory_of([make("mine", extra=extra), make("fedavg", extra=extra | {"strategy": {"name": "fedavg"}})])
    )
    rows = {row.name: row.cells[0].text for row in sheet(document, "settings").rows}
    assert rows["`mine`.beta"] == "0.9" and "`mine`.name" not in rows, "the path is the method's label already"
    assert (rows["fleet.types.hub.tops"], rows["fleet.types.hub.active_power_w"]) == ("20", "9")
    assert not any("fedavg" in name for name in rows) and "FITTED" not in html(document, {})


def test_results_come_first_and_what_they_rest_on_last(usual, registry):
    document = build(usual, registry({"first": "v1", "second": "fedavg"}))
    first, *_, last = document.sections
    verdict, claims, table, *figures = first.blocks
    assert isinstance(verdict, Paragraphs) and "relief is 2.00 times as fast" in verdict.lines[0]
    assert verdict.lines[-2] == "1 claim was named before the first run: 1 too short to judge."
    assert verdict.lines[-1].startswith(
        "fedavg: every client trains and sends the whole model; mean with equal weights; "
    )
    assert (claims.slug, table.slug) == ("e1-verdicts", "e1-main")
    assert [p.slug for p in figures] == ["e1-convergence", "e1-pareto", "e1-round"]
    assert last.slug == "overview" and [t.slug for t in last.blocks][:2] == ["cells", "settings"]
    page = html(document, {})
    places = [
        page.rindex(text) for text in ("id='e1-verdicts'", "id='e1-main'", "What surprised", "What this rests on")
    ]
    assert places == sorted(places)


def test_tables_and_figures_are_numbered_in_order(usual_report):
    page, text = html(usual_report, {}), markdown(usual_report)
    for kind, blocks in (("Table", usual_report.tables), ("Figure", usual_report.figures)):
        places = [page.index(f"<b>{kind} {i}.</b>") for i in range(1, len(blocks) + 1)]
        assert places == sorted(places) and f"{kind} {len(blocks) + 1}." not in page
        assert f"{kind} 1. {blocks[0].caption}" in text


def test_the_main_table_compares_the_last_rounds(usual_report):
    """RELIEF, whose bootstrap is its round 1, has as many rounds as FedAvg: 59.5 % against 54.5 %."""
    main = sheet(usual_report, "e1-main")
    assert main.head[2:4] == ("F1 %", "vs fedavg [95 %]")
    assert [cell.text for cell in row(main, "relief").cells[1:3]] == ["59.5", "+5.0 (1 run)"]


def test_one_speedup_stands_in_the_main_table_and_what_it_depends_on_a_click_away(usual_report):
    main, further, clocks = (sheet(usual_report, f"e1-{name}") for name in ("main", "all", "clocks"))
    assert [head for head in main.head if "speedup" in head] == ["speedup"]
    cell = row(main, "relief").cells[main.head.index("speedup") - 1]
    assert (cell.text, cell.below, cell.origin) == ("2.00", "", "simulated")
    shown = dict(zip(further.head[1:], (c.text for c in row(further, "relief").cells), strict=True))
    assert (shown["compute"], shown["link %"]) == ("3.60", "50") and "speedup" not in shown
    assert "network" not in html(usual_report, {}).partition("id='e1-main'")[2].partition("</thead>")[0]
    assert "title='FedAvg&#x27;s simulated seconds over the method&#x27;s" in html(usual_report, {})
    assert clocks.head[1:] == ("`flop_proportional`", "`split_naive`")
    assert [c.text for c in row(clocks, "relief").cells] == ["2.00", "2.00"]


OWN = {"data": {"name": "my_lab:WALKS", "split": "within_subject", "stride_s": 2.0}}


def test_a_report_on_ones_own_data_and_method_is_about_them(make, put_on, inventory_of):
    """No paper, no folds; the method stands in the first sentence, in every figure and in the table after presets."""
    own = MethodFacts(name="FedAdam", title="FedAdam", kind="own")
    of = {"extra": OWN, "title": "Walks at home"}
    runs = [put_on(make("fedavg", **of)), put_on(make("FedAdam", scores=(0.5, 0.7), facts=own, **of))]
    document = build(inventory_of([*runs, put_on(make("relief", **of))]))
    assert document.title == "Results on Walks at home"
    assert "Walks at home" in next(t for t in document.tables if t.slug == "e1-main").caption
    assert [line.name for line in sheet(document, "e1-main").rows] == ["fedavg", "relief", "FedAdam"]
    first = " ".join(next(b for b in document.blocks if isinstance(b, Paragraphs)).lines)
    assert "FedAdam is as fast as fedavg" in first and "its F1 is 10.0 points higher (1 run)" in first
    slugs = {t.slug for t in document.tables}
    assert "e1-paper" not in slugs and not any(t.second for t in document.tables)
    figures = {p.slug: {str(v) for line in p.rows for v in line} for p in document.figures}
    for slug in ("e1-convergence", "e1-pareto", "e1-round", "e1-modalities"):
        assert "FedAdam" in figures[slug], slug
    text = markdown(document)
    rest = text.replace("Eq. (5) of the RELIEF paper", "").replace("the RELIEF paper", "")
    assert "paper" not in rest and "Eq." not in rest
    assert "fold" not in text


def test_one_run_of_one_round_makes_no_odd_sentence(make, put_on, inventory_of):
    run = put_on(make("relief", scores=(0.6,), planned=1))
    text = markdown(build(inventory_of([run])))
    for odd in ("1 runs", "1 rounds", "1 cells", "1 settings", "1 seeds", "1 threads", "0.0 process hours", "all 1 "):
        assert odd not in text, odd
    assert "1 cell, done, 1 setting." in text and "Protocol: 1 round," in text


def test_own_models_stand_beside_the_canonical_one_and_lead(make, put_on, inventory_of):
    """On the paper's data a deviation is the headline's alone; a method that was not run has no own models to show."""
    pamap2 = {"data": {"name": "pamap2", "stride_s": 1.0}}
    runs = [make("fedavg"), make("fedlease", scores=(0.7, 0.8), own=(0.4, 0.5))]
    main = sheet(build(inventory_of([put_on(r, **pamap2) for r in runs])), "e1-paper")
    assert main.head[2:4] == ("F1 %", "F1 own %")
    lines = {name: row(main, name).cells[1:3] for name in ("fedavg", "fedlease*", "pilot")}
    shown = {name: [(e.text, e.below) for e in cells] for name, cells in lines.items()}
    assert shown == {
        "fedavg": [("60.0", "92.0 ± 0.38, -32.0"), ("-", "")],
        "fedlease*": [("80.0", "91.0 ± 0.36"), ("50.0*", "91.0 ± 0.36, -41.0")],
        "pilot": [("", "91.8 ± 0.29"), ("", "")],
    }
    assert any(note.startswith("* Clients are tested on models of their own: the headline is") for note in main.notes)


def test_the_ablation_is_paired_with_v0(usual_report):
    table = sheet(usual_report, "e1-ablation")
    entry = row(table, "v1: RELIEF without elastic training (V1)").cells[2]
    assert entry.text == "+5.0 (1 run)" and entry.below == "", "the paper's +3.9 is of PAMAP2"
    assert row(table, "relief: RELIEF (V0)").cells[2].text == "-"
    assert table.head[3].startswith("F1 minus relief's")


def test_verdicts_have_a_line_per_claim_that_was_named(usual, registry):
    claims = [{"first": "v1", "second": "fedavg"}, {"first": "v2", "second": "v3"}]
    document = build(usual, registry(*claims))
    lines = sheet(document, "e1-verdicts").rows
    assert [(line.name, line.cells[0].text) for line in lines] == [
        ("v1 > fedavg in F1", "too short to judge"), ("v2 > v3 in F1", "too short to judge"),
    ]  # fmt: skip
    assert lines[0].cells[-1].text == "1 replicate, expected 3 or more"


def test_a_claim_and_a_row_name_a_method_alike_and_its_title_stands_below(usual, registry):
    claims = [{"first": "relief", "second": "v2_mandatory", "text": "Cohorts help"}, {"first": "v1", "second": "v2"}]
    document = build(usual, registry(*claims))
    table, rows = sheet(document, "e1-verdicts"), [line.name for line in sheet(document, "e1-main").rows]
    assert [line.name for line in table.rows] == ["Cohorts help (relief > v2_mandatory in F1)", "v1 > v2 in F1"]
    assert "`v2_mandatory`: V2 with mandatory blocks" in table.notes[-1] and "v2_mandatory" in rows
    assert "`relief`" not in table.notes[-1], "RELIEF is its name in other letters"


def test_the_page_says_on_how_many_windows_an_f1_rests_and_what_each_client_has(usual_report):
    windows, clients = sheet(usual_report, "e1-windows"), sheet(usual_report, "e1-clients")
    assert "windows of 5.12 s, one every 5 s; 2 classes. F1 is taken over the test windows." in windows.caption
    assert [c.text for c in row(windows, "0").cells] == ["1, 2, 3, 4, 5, 6, 7, 8", "40", "30", "6", "3"]
    assert [line.name for line in clients.rows] == ["0", "1", "2"]


def test_without_claims_the_page_says_that_nothing_was_tested(usual_report):
    assert not any(s.slug == "e1-verdicts" for s in usual_report.tables)
    assert any(line.endswith("no claim was named before these runs.") for line in texts(usual_report))


def test_a_failed_and_a_missing_cell_are_marked_and_counted(make, family, put_on, inventory_of):
    failed = (put_on(make("v1", seed=5)), "failed", "void round <b>3</b>")
    document = build(
        inventory_of([put_on(r) for r in family[:1]], [failed, (put_on(make("relief", seed=5)), "planned")])
    )
    assert document.lead == "a grid: 1 of 3 cells done, 1 setting."
    main = sheet(document, "e1-main")
    assert (row(main, "v1").cells[0].text, row(main, "v1").cells[0].tone) == ("failed", "gap")
    assert row(main, "relief").cells[0].text == "planned"
    gaps = sheet(document, "gaps")
    assert [[e.text for e in line.cells][1:] for line in gaps.rows] == [
        ["failed", "void round <b>3</b>"],
        ["planned", "planned, never begun"],
    ]
    page = html(document, {})
    assert "<b>3</b>" not in page and "&lt;b&gt;3&lt;/b&gt;" in page


def test_zero_finished_cells_give_a_page_of_gaps(make, put_on, inventory_of):
    document = build(inventory_of([], [(put_on(make("fedavg")), "planned"), (put_on(make("relief")), "planned")]))
    assert "0 of 2 cells done" in document.lead and "nothing to show yet" in document.lead
    assert "No cell of this setting is done." in texts(document)
    assert document.figures == ()
    assert all(e.tone == "gap" for line in sheet(document, "e1-main").rows for e in line.cells)
    assert document.footer.startswith("No run counts")
    assert html(document, {}) and markdown(document)


def test_a_plan_without_cells_gives_a_page_too(inventory_of):
    document = build(inventory_of())
    assert document.lead.startswith("a grid: no cells, 0 settings.")
    assert html(document, {})


def test_two_programs_are_marked_at_the_top_and_in_the_rows(make, put_on, inventory_of):
    runs = [
        put_on(make("fedavg"), digest="a" * 64, where="w0"),
        put_on(make("fedavg", seed=1), digest="b" * 64, where="w1"),
        put_on(make("v1"), digest="a" * 64, where="w2"),
    ]
    document = build(inventory_of(runs))
    assert any(t.startswith("Cells of 2 different programs") for t in texts(document))
    assert [line.name for line in sheet(document, "programs").rows] == ["a" * 12, "b" * 12]
    main = sheet(document, "e1-main")
    assert row(main, "fedavg").cells[0].below == "1 by other code"
    assert row(main, "v1").cells[0].below == ""
    assert "commit" not in document.footer


def test_the_same_cell_of_two_programs_counts_once_and_says_so(make, put_on, inventory_of):
    runs = [put_on(make("fedavg"), digest=d * 64, where=d) for d in "ab"] + [put_on(make("v1"), digest="a" * 64)]
    document = build(inventory_of(runs))
    assert row(sheet(document, "e1-main"), "fedavg").cells[0].text == "1"
    assert any("was given twice" in t for t in texts(document))


def test_synthetic_data_are_called_so_everywhere(make, put_on, inventory_of):
    document = build(inventory_of([put_on(make(m, origin="SYNTHETIC")) for m in ("fedavg", "relief")]))
    assert "SYNTHETIC" in document.lead and "SYNTHETIC" in document.footer
    main = sheet(document, "e1-main")
    assert main.caption.startswith("Results: SYNTHETIC data")
    assert row(main, "fedavg").cells[1].origin == "SYNTHETIC"


def test_gap_and_clients_fill_the_table_in_the_form_of_iv(make, put_on, inventory_of):
    pamap2 = {"data": {"name": "pamap2", "stride_s": 1.0}}
    runs = [put_on(make(m), **pamap2, where=f"{m}55") for m in ("fedavg", "relief")]
    runs += [put_on(make(m), **pamap2, fleet={"gap": 100.0}, where=f"{m}100") for m in ("fedavg", "relief")]
    document = build(inventory_of(runs))
    table = sheet(document, "sensitivity-1")
    assert table.head[1:3] == ("B1 fedavg", "B1 fedel")
    assert row(table, "Hetero. Extreme (100x)").cells[0].below == "91.6 ± 0.43, -31.6"
    assert row(table, "Hetero. Mild (10x)").cells[0].text == "not run"
    assert row(table, "Hetero. Moderate (55x)").cells[1].text == "not run"
    assert not [p for p in document.figures if p.slug.startswith("e2")], "no figures for a varied fleet"


def test_bounds_stand_last_where_every_fleet_has_them(make, put_on, inventory_of):
    labels = ("full_only", "fedavg", "central", "relief")
    runs = [put_on(make(m), fleet={"gap": g}, where=f"{m}{g}") for m in labels for g in (55.0, 100.0)]
    runs += [put_on(make("local"), fleet={"gap": 100.0}, where="local100")]
    table = sheet(build(inventory_of(runs)), "sensitivity-1")
    assert table.head == ("setting", "B1 fedavg", "B1 relief", "B1 central", "B1 full_only")


def test_own_models_are_marked_in_every_table_and_caption_with_an_f1(make, put_on, inventory_of):
    pamap2 = {"data": {"name": "pamap2", "stride_s": 1.0}}
    runs = [make("fedavg"), make("harmony", scores=(0.7, 0.8), own=(0.4, 0.5))]
    wide = [put_on(r, **pamap2, fleet={"gap": g}, where=f"{r.label}{g}") for r in runs for g in (55.0, 100.0)]
    document = build(inventory_of(wide))
    table = sheet(document, "sensitivity-1")
    assert row(table, "Hetero. Extreme (100x)").cells[table.head.index("B1 harmony") - 1].text == "50.0*"
    assert table.notes[-1].endswith("*: of the clients' own models.")
    ends = [p.caption for p in document.figures if p.slug in ("e1-convergence", "e1-pareto")]
    assert len(ends) == 2 and all(c.endswith("Of `harmony`: F1 of the clients' own models.") for c in ends)
    testbed = sheet(
        build(inventory_of([put_on(r, fleet={"preset": "testbed"}, data={"name": "pamap2"}) for r in runs])),
        "e1-testbed",
    )
    assert row(testbed, "harmony*") and "own models" in testbed.notes[-1]


def test_the_testbed_s_two_boards_and_its_fleet_get_tables_of_their_own(make, put_on, inventory_of):
    """The paper's seconds are of two boards with a client each, its F1 and joules of the fleet."""
    pamap2, two = (
        {"data": {"name": "pamap2"}},
        {"preset": "testbed", "types": {"A": {"share": 1}, "B": {"share": 0}, "C": {"share": 1}}},
    )
    boards = put_on(make("fedavg"), fleet=two, **pamap2, where="two")
    fleet = put_on(make("fedavg"), fleet={"preset": "testbed"}, **pamap2, where="fleet")
    for runs, titles in (
        ([boards], ["two devices"]),
        ([fleet], ["fleet"]),
        ([boards, fleet], ["two devices", "fleet"]),
    ):
        document = build(inventory_of(runs))
        ends = [s.caption for s in document.tables if s.slug.endswith("-testbed")]
        assert [c.endswith(f", testbed, {t}.") for c, t in zip(ends, titles, strict=True)] == [True] * len(titles)
    entries = [{h: (e.text, e.below) for h, e in zip(t.head[1:], row(t, "fedavg").cells, strict=True)}
             for t in (sheet(document, f"e{i}-testbed") for i in (1, 2))]  # fmt: skip
    # Device 2 is the one of Type C: forward .25 + backward .125 + optimizer .125 of a 2 s round, no wait.
    assert entries[0].items() >= {"Type C computes, s": ("1.00", "8.20"), "round, s": ("2.00", "9.05")}.items()
    assert entries[1].items() >= {"F1 %": ("60.0", "91.1"), "fleet, J/round": ("100", "1346")}.items()
    assert entries[0].keys() & entries[1].keys() == {"runs"}
    one, other = (sheet(document, f"e{i}-testbed") for i in (1, 2))
    assert row(one, "fedavg").cells[3].origin == "simulated" and row(other, "fedavg").cells[2].origin == "measured"
    many = put_on(make("fedavg"), fleet={"preset": "testbed"}, data={"name": "pamap2", "num_clients": 20})
    more = sheet(build(inventory_of([many])), "e1-testbed")
    assert not any(e.below for e in row(more, "fedavg").cells), "the paper's fleet has a client per subject"


def test_table_vi_stands_with_the_testbed(make, put_on, inventory_of):
    runs = [put_on(make("fedavg"), fleet={"preset": "testbed"}, data={"name": "pamap2"})]
    table = sheet(build(inventory_of(runs)), "e1-devices-used")
    entries = [[(e.text, e.below) for e in line.cells] for line in table.rows]
    assert [row[2] for row in entries] == [("60", "60"), ("30", "30"), ("15", "15")]
    assert [row[1][1] for row in entries] == ["all 4", "acc + gyro", "acc"]
    assert [row[1][0] for row in entries] == ["acc + gyro + mag + hr", "acc + gyro", "acc"]


def test_the_page_is_one_file_without_any_outside_resource(usual_report):
    drawing = '<svg xmlns="http://www.w3.org/2000/svg" width="1"><g id="a"><use href="#a"/></g></svg>'
    page = html(usual_report, {p.slug: drawing for p in usual_report.figures})
    addresses = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')\s>]+)""", page)
    assert addresses and all(f.startswith(("#", "figures/")) for f in addresses)
    assert page.count("<script>") == 1 and "<script " not in page and "@import" not in page and "import(" not in page
    ids = re.findall(r'\bid=["\']([^"\']+)', page)
    assert len(ids) == len(set(ids)), "ids are unique although every figure uses the same"


def test_every_link_of_the_contents_has_its_target(usual_report):
    page = html(usual_report, {})
    targets = re.findall(r"href='#([^']+)'", page)
    assert targets and all(f"id='{t}'" in page for t in targets)


def test_each_figure_and_table_has_a_caption_and_own_files(usual_report):
    slugs = [b.slug for b in usual_report.blocks if isinstance(b, Table | Figure)]
    assert len(slugs) == len(set(slugs)) and all(re.fullmatch(r"[a-z0-9-]+", s) for s in slugs)
    assert all(b.caption.endswith(".") for b in usual_report.blocks if isinstance(b, Table | Figure))


def test_other_formats_hold_the_same_tables(usual_report):
    text = markdown(usual_report)
    assert "59.5" in text and "RELIEF without elastic training (V1)" in text


def test_a_reconstructed_method_stands_in_its_row_whether_run_or_planned(make, put_on, inventory_of):
    pamap2 = {"data": {"name": "pamap2", "stride_s": 1.0}}
    runs = [put_on(make(m), **pamap2, where=m) for m in ("fedavg", "fedicu", "fedicu_table")]
    main = sheet(build(inventory_of(runs)), "e1-paper")
    assert [line.name for line in main.rows][:4] == ["fedavg", "fedprox", "fedel", "FedICU (reconstructed)"]
    assert row(main, "fedel").cells[0].text == "not run"
    assert row(main, "FedICU (reconstructed)").cells[1].below.startswith("87.6 ± 0.62")
    preset = row(main, "FedICU (reconstructed), table").cells
    assert preset[1].below.startswith("87.6 ± 0.62") and preset[main.head.index("up, MiB") - 1].origin == "FITTED"


def test_on_other_data_the_papers_table_holds_what_was_run(usual_report):
    paper = sheet(usual_report, "e1-paper")
    assert [line.name for line in paper.rows] == ["fedavg", "relief"]
    assert not any(cell.below for line in paper.rows for cell in line.cells) and paper.second == ""
    assert paper.caption.startswith("Our figures in the columns of the paper's Table I: ")
    assert any(note.startswith("The paper prints nothing about these data") for note in paper.notes)


def test_the_tables_name_their_clock_and_who_planned(usual_report):
    """The main table and claims go by the planner's clock, the table beside the paper by the paper's."""
    main, paper = sheet(usual_report, "e1-main"), sheet(usual_report, "e1-paper")
    clock = "`flop_proportional`"
    assert [h for h in paper.head if h.startswith(("speedup", "compute", "link"))] == [
        f"speedup, {clock}", f"compute, {clock}", f"link %, {clock}",
    ]  # fmt: skip
    fitted = "fleet utilisation FITTED so that FedAvg would take 847 J a round on the RELIEF paper's data and fleet"
    note = f"Seconds and joules are simulated {{}}; {fitted}{{}}."
    trained = "in proportion to the FLOPs of what is trained (clock `flop_proportional`)"
    counted = "with every pass through every layer counted (clock `split_naive`)"
    assert note.format(trained, f"; allocation planned {counted}") in paper.notes
    assert note.format(counted, "") in main.details


def test_every_table_of_figures_says_what_was_reduced(make, put_on, inventory_of):
    runs = [put_on(make(m, seed=s), evaluation={"every": 5}, where=f"{m}{s}") for m in ("fedavg", "v1") for s in (0, 3)]
    runs += [put_on(make("fedavg"), data={"stride_s": 1.0}, where="other")]
    document = build(inventory_of(runs))
    line = (
        "Protocol: 2 rounds, E = 2 local epochs, window stride {} s, missing modality `zero_input`, held-out subjects, "
        "tested every 5 rounds and after the last, fold 0, seeds 0 and 3."
    )
    assert sheet(document, "e1-main").details[0] == line.format(5)
    for slug in ("e1-ablation", "e1-paper"):
        assert sheet(document, slug).notes[0] == line.format(5)
    assert "window stride 1 s" in sheet(document, "e2-main").details[0], "not the settings of all experiments mixed"
    assert "rounds to 85 %, tested every 5th" in sheet(document, "e1-paper").head


def test_the_paper_s_data_set_is_named_once_in_the_heading(family, put_on, inventory_of):
    usual = inventory_of([put_on(r, data={"name": "pamap2"}, training={"lr": 0.01}) for r in family])
    main = sheet(build(usual), "e1-paper")
    assert main.second == "second line: paper, PAMAP2"
    assert not any("paper" in e.below for line in main.rows for e in line.cells)
    for render in (lambda d: html(d, {}), markdown):
        assert "second line: paper, PAMAP2" in render(build(usual))


def test_claims_that_fit_no_setting_are_said_at_the_top(usual, registry):
    document = build(usual, registry({"first": "v1", "second": "fedavg"}, where={"fleet.gap": 10}))
    assert not any(s.slug == "e1-verdicts" for s in document.tables)
    assert any("no finished runs of that here, none is judged" in line for line in texts(document))
