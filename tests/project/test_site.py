"""The documentation as a site: built without a warning, complete, and nothing in it is fetched from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.tree import ROOT

pytest.importorskip("mkdocs", reason="mkdocs comes with the docs extra")
pytestmark = pytest.mark.slow
# What a browser fetches by itself; an address in `<a href>` waits for a click.
FETCHED = re.compile(r"<(?:script|img|iframe|source|link)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^\s\">]+")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_built(site: Path):
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert pages <= {path.relative_to(site) for path in site.rglob("*.html")}


def test_nothing_is_fetched_from_elsewhere(site: Path):
    assert FETCHED.search('<script src="https://unpkg.com/iframe-worker/shim"></script>')
    fetched = {hit for page in site.rglob("*.html") for hit in FETCHED.findall(page.read_text(encoding="utf-8"))}
    styles = {path.name: path.read_text(encoding="utf-8") for path in site.rglob("*.css")}
    assert not fetched and not [name for name, text in styles.items() if re.search(r"url\(['\"]?(https?:)?//", text)]


def test_links_to_files_of_the_repository_are_named_not_broken(site: Path):
    page = (site / "extending.html").read_text(encoding="utf-8")
    assert 'href="../relief_ray' not in page and "relief_ray/core/federated.py" in page


def test_bars_in_a_tables_code_are_shown_without_their_backslash(site: Path):
    page = (site / "cli.html").read_text(encoding="utf-8")
    assert "PRESET|FILE.yaml</code>" in page and "\\|" not in page


def test_a_figure_of_a_table_is_not_broken_over_lines(site: Path):
    page = (site / "results.html").read_text(encoding="utf-8")
    cells = [cell for cell in re.findall(r"<td.*?</td>", page, flags=re.DOTALL) if "±" in cell or "[-" in cell]
    assert cells and not [cell for cell in cells if re.search(r"\d ±|± \d|\[-?[\d.]+, ", cell)]
    assert "-3.2 [-4.8,&nbsp;-1.6]" in page and "74.8&nbsp;±&nbsp;5.2" in page


def test_the_page_on_data_stands_beside_ones_own_methods(site: Path):
    """A reader with data of his own looks there, not among the concepts."""
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    own = nav[nav.index("- Your own data") : nav.index("- Compare methods")]
    assert "extending.md" in own and "data.md" in own


def test_public_names_are_on_the_page_of_the_api(site: Path):
    import relief_ray

    page = (site / "reference.html").read_text(encoding="utf-8")
    names = {name: getattr(relief_ray, name) for name in relief_ray.__all__}
    # Constants have no name of their own.
    documented = [n for n, v in names.items() if hasattr(v, "__qualname__")]
    documented = [n for n in documented if names[n].__module__.startswith("relief_ray")]
    places = [f"{names[n].__module__}.{names[n].__qualname__}" for n in documented]
    assert not [place for place in (*places, "actors.launch.conformance") if f'id="{place}"' not in page]
    assert all(f"rr.{n}" in page for n in set(names) - set(documented) if n.isupper())
