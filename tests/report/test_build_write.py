"""Files of a report: what stands in the CSV, special characters in every format, figures as PDF, PNG and SVG."""

import re

import pytest

from relief_ray.report.build import build, draw, write
from relief_ray.report.document import Document, Paragraphs, Section
from relief_ray.report.formats.pages import html, markdown, own_ids
from relief_ray.support.errors import UserError


def document(*blocks):
    section = Section(title="One", slug="one", blocks=blocks)
    return Document(title="T", lead="L", sections=(section,), footer="F")


def test_notices_are_set_apart():
    notice = Paragraphs(lines=("look",), tone="warn")
    assert "<div class='notice warn'><p>look</p></div>" in html(document(notice), {})
    assert "> look" in markdown(document(notice))
    several = Paragraphs(lines=("one", "two"), tone="info")
    assert "> one\n>\n> two" in markdown(document(several)), "paragraphs, not one line"


def test_a_folded_section_shows_its_heading_and_holds_what_is_inside_it():
    line = Paragraphs(lines=("text",))

    def section(title, level, folded):
        return Section(title=title, slug=title, blocks=(line,), level=level, is_folded=folded)

    sections = (section("a", 2, False), section("b", 3, True), section("c", 2, True), section("d", 3, False))
    page = html(Document(title="T", lead="L", sections=sections, footer="F"), {})
    body = re.sub(r" <a class='anchor'.*?</a>", "", page.partition("<main>")[2].replace("\n", ""))
    assert body.startswith(
        "<section id='a'><h2>a</h2><p>text</p></section>"
        "<section id='b'><details><summary><h3>b</h3></summary><p>text</p></details></section>"
        "<section id='c'><details><summary><h2>c</h2></summary><p>text</p>"
        "<section id='d'><h3>d</h3><p>text</p></section></details></section>"
    )
    assert "<a href='#c'>" in page, "the contents lead to what is folded"


def test_of_many_settings_the_first_stands_open_and_details_are_folded(make, put_on, inventory_of):
    gaps = (10.0, 55.0, 100.0, 200.0)

    def folded(number):
        runs = [put_on(make(m), fleet={"rotation": 0, "gap": g}) for g in gaps[:number] for m in ("fedavg", "relief")]
        return {s.slug: s.is_folded for s in build(inventory_of(runs)).sections}

    few, many = folded(3), folded(4)
    assert not any(few[f"e{i}"] for i in (1, 2, 3)) and few["e1-tables"] and few["overview"]
    assert [many[f"e{i}"] for i in (1, 2, 3, 4)] == [False, True, True, True] and many["overview"]


def test_ids_of_drawings_are_made_their_own():
    """Equal images have equal ids, which nothing refers to: they have none."""
    image, kept = '<image xlink:href="data:x" id="image7" x="1"/>', '<image xlink:href="data:x" x="1"/>'
    use = '<use xlink:href="#a" clip="url(#a)"/>'
    raw = f'<?xml?><svg width="3" viewBox="0"><metadata>d</metadata><g id="a"/>{use}{image}{image}</svg>'
    used = '<use xlink:href="#f1-a" clip="url(#f1-a)"/>'
    assert own_ids(raw, "f1") == f'<svg viewBox="0"><g id="f1-a"/>{used}{kept}{kept}</svg>'


@pytest.mark.slow
def test_all_files_are_written_and_repeat_to_the_byte(usual, tmp_path):
    pytest.importorskip("matplotlib")
    made = build(usual)
    written = write(made, tmp_path / "a")
    (tmp_path / "b" / "figures").mkdir(parents=True)
    again = draw(made.figures[:2], tmp_path / "b" / "figures")
    drawings = [len(plot.views) or 1 for plot in made.figures]
    number = sum(drawings[:2])
    assert [p.name for p in written] == ["index.html", "report.md"]
    files = {p.relative_to(tmp_path / "a"): p for p in (tmp_path / "a").rglob("*") if p.is_file()}
    for plot in made.figures:
        assert {f"{plot.slug}{s}" for s in (".pdf", ".png", ".svg", ".csv")} <= {p.name for p in files}
    repeated = [p for p in (tmp_path / "b").rglob("*") if p.is_file()]
    assert len(again) == number and len(repeated) == number * 3
    assert all(p.read_bytes() == (tmp_path / "a" / p.relative_to(tmp_path / "b")).read_bytes() for p in repeated)
    assert all(p.stat().st_size > 20 for p in files.values())
    pdf = (tmp_path / "a" / "figures" / "e1-convergence.pdf").read_bytes()
    assert b"/FontFile2" in pdf and b"/Type3" not in pdf, "letters are embedded as TrueType"
    page = (tmp_path / "a" / "index.html").read_text()
    assert page.count("<svg") == sum(drawings)


def test_a_folder_that_cannot_be_written_is_named(usual, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the report"):
        write(build(usual), tmp_path / "file" / "out")


def test_a_page_of_the_data_in_the_reports_folder_is_led_to(tmp_path):
    made = document(Paragraphs(lines=("text",)))
    write(made, tmp_path)
    assert "data.html" not in (tmp_path / "index.html").read_text() + (tmp_path / "report.md").read_text()
    (tmp_path / "data.html").write_text("a page")
    write(made, tmp_path)
    assert "<a href='data.html'>The data, by person and sensor</a>" in (tmp_path / "index.html").read_text()
    assert "[The data, by person and sensor](data.html)" in (tmp_path / "report.md").read_text()
