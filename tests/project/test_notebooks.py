"""Test the notebooks: what is stored is whole and names no machine; executed again, nothing fails."""

import json
import re
import shutil

import pytest

from tests.project.tree import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LIMIT_S = 60


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return request.param


def code_cells(path):
    return [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]


def texts(cell):
    """What a cell printed or showed in words."""
    for output in cell["outputs"]:
        data = output.get("data", {})
        shown = [output.get("text", ""), *(data[kind] for kind in data if kind.startswith("text/"))]
        yield from ("".join(part) for part in shown)


def test_stored_outputs_are_those_of_one_execution_from_top_to_bottom(notebook):
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert any(cell["outputs"] for cell in cells)
    assert not [o for cell in cells for o in cell["outputs"] if o["output_type"] == "error"]


def test_stored_outputs_name_no_folder_of_a_machine_and_no_time_of_day(notebook):
    local = re.compile(r"/tmp/|/home/|/root/|/Users/|\b20\d\d-\d\d-\d\d")
    found = [hit.group() for cell in code_cells(notebook) for text in texts(cell) for hit in local.finditer(text)]
    assert found == []


def test_the_numbers_of_the_notebooks_are_their_order():
    assert [path.name[:2] for path in NOTEBOOKS] == [f"{i:02d}" for i in range(1, len(NOTEBOOKS) + 1)]


def test_what_a_notebook_imports_from_here_is_there(notebook, monkeypatch):
    monkeypatch.syspath_prepend(notebook.parent)
    lines = (line for cell in code_cells(notebook) for line in cell["source"])
    found = [line for line in lines if re.match(r"(from|import) (relief_ray|actors|tune_configs|theory)\b", line)]
    assert found
    for line in found:
        exec(line, {})


@pytest.mark.slow
def test_a_notebook_runs(notebook, run_cache, tmp_path, monkeypatch):
    """In a copy of its place beside results and documentation, as a reader executes it."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shutil.copytree(ROOT / "results", tmp_path / "results")
    shutil.copytree(notebook.parent, tmp_path / "notebooks")
    content = nbformat.read(notebook, as_version=4)
    place = {"metadata": {"path": str(tmp_path / "notebooks")}}
    nbclient.NotebookClient(content, timeout=10 * LIMIT_S, resources=place, kernel_name="python3").execute()
