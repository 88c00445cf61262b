"""Claims are found beside plans, and only where their file is the one that the plan was made with."""

import pytest

from relief_ray.records.cells import CLAIMS_FILE, PlanFile, PlannedCell, register_claims, write_plan_file
from relief_ray.report.claims import Registry, registry_of
from relief_ray.strategies import PRESETS, facts_of
from tests.sealed import put_page

TEXT = "data: dsa\nsplit: held_out_subject\nclaims:\n  - {first: v1, second: fedavg}\n"


def config(method, fold, replicate, data="dsa"):
    return {
        "strategy": {"name": method}, "seed": 10_000 + 100 * replicate + fold, "replicate": replicate,
        "fleet": {"rotation": replicate % 6}, "data": {"name": data, "split": "held_out_subject", "fold": fold},
    }  # fmt: skip


def facts(method):
    return facts_of(PRESETS[method], method)


def plan(folder, text=TEXT, cells=()):
    source = folder.parent / f"{folder.name}.yaml"
    source.write_text(text)
    claims = register_claims(folder, source, None, begun=0, now="2026-01-01T00:00:00Z")
    write_plan_file(folder / "plan.json", PlanFile(kind="grid", name="g", cells=tuple(cells), claims=claims))
    return folder


def test_claims_come_with_what_was_planned(tmp_path):
    cells = [
        PlannedCell(folder=f"{m}-{f}-{r}", label=m, method=facts(m), config=config(m, f, r))
        for m in ("v1", "fedavg") for f in (0, 1) for r in (0, 1)
    ]  # fmt: skip
    other = PlannedCell(folder="x", label="v1", method=facts("v1"), config=config("v1", 0, 5, data="pamap2"))
    folder = plan(tmp_path / "g", cells=[*cells[1:], other])
    (found,) = registry_of([folder]).files
    assert [c.brief for c in found.claims.claims] == ["v1 > fedavg in F1"]
    assert found.committed.at == "2026-01-01T00:00:00Z"
    assert set(found.committed.planned["fedavg"]) == {
        (0, 0, 10_000, 0, -1), (0, 1, 10_100, 1, -1), (1, 0, 10_001, 0, -1), (1, 1, 10_101, 1, -1),
    }  # fmt: skip
    assert found.planned_pairs("v1", "fedavg") == {(0, 1, 10_100), (1, 0, 10_001), (1, 1, 10_101)}
    cell = folder / "v1-0-1"
    cell.mkdir()
    assert registry_of([cell, folder]) == registry_of([folder]), "a cell's plan lies above it, and counts once"


def test_a_file_that_was_changed_since_is_not_used(tmp_path):
    folder = plan(tmp_path / "g")
    (folder / CLAIMS_FILE).write_text(TEXT.replace("v1", "v2"))
    found = registry_of([folder])
    assert found.files == () and "was changed after the plan was made" in found.problems[0]
    (folder / CLAIMS_FILE).unlink()
    assert "cannot be read" in registry_of([folder]).problems[0]


def test_more_than_six_claims_on_a_page_are_not_judged(tmp_path):
    rows = "".join(f"  - {{first: v1, second: fedavg, margin: {m}}}\n" for m in range(1, 5))
    one = plan(tmp_path / "a", TEXT.split("  -")[0] + rows)
    two = plan(tmp_path / "b", TEXT + "  - {first: v2, second: fedavg}\n  - {first: v3, second: fedavg}\n")
    assert registry_of([one]).num_claims == 4 and registry_of([two]).num_claims == 3
    both = registry_of([one, two])
    assert both.files == () and "2 claims files with 7 claims" in both.problems[0]


def test_a_plan_without_claims_has_none(tmp_path):
    put_page(tmp_path / "plan.json", {"kind": "run", "name": "x", "cells": []})
    assert registry_of([tmp_path]) == Registry() and registry_of([]) == Registry()


@pytest.mark.parametrize("where", ["data: dsa", "choice: tuned"])
def test_keys_of_where_have_to_hold(tmp_path, where):
    key, _, value = where.partition(": ")
    name = "data.name" if key == "data" else key
    text = TEXT.replace("claims:", f"where: {{{name}: {value}}}\nclaims:")
    cell = PlannedCell(folder="a", label="v1", method=facts("v1"), config=config("v1", 0, 0))
    (found,) = registry_of([plan(tmp_path / "g", text, [cell])]).files
    assert bool(found.committed.planned) == (key == "data")
