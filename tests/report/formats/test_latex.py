"""The LaTeX file: rows with as many cells as columns, no table longer than a page, nothing TeX stumbles over."""

import re
import shutil
import subprocess

import pytest

from relief_ray.report.build import build, write
from relief_ray.report.document import Cell, Document, Figure, Row, Section, Table, word_table
from relief_ray.report.formats.latex import PAGE_LINES, escape, latex, paged

NASTY = "50 % of a_b & c# $x$ {y} ~ ^ \\ <i> | `x_1-y` -3 \N{DAGGER} 1 \N{LESS-THAN OR EQUAL TO} 2 \N{ELEMENT OF}"


def document(*blocks):
    return Document(title="T", lead="L", sections=(Section(title="One", slug="one", blocks=blocks),), footer=NASTY)


def numbers(num_lines, num_columns=3, **more):
    cells = tuple(Cell(text=f"{i}.0", below="paper 2 %", origin="measured") for i in range(num_columns))
    lines = tuple(Row(name=f"m_{n}", cells=cells, rule=n == 1) for n in range(num_lines))
    head = ("method", *(f"F{i}, % of `a_b`" for i in range(num_columns)))
    return Table(slug="n", caption=f"C {NASTY}.", head=head, rows=lines, second="second & line", **more)


def prose_table(num_lines):
    rows = [[f"[{n}] {NASTY}", "short", "long words " * 20] for n in range(num_lines)]
    return word_table("w", "Words.", ["* name", "v, w", "evidence"], rows)


def tabulars(text):
    """Each table's column specification and its rows as cells."""
    for spec, body in re.findall(r"\\begin\{tabular\}\{([^\n]*)\}\n(.*?)\\end\{tabular\}", text, flags=re.S):
        rows = [r for r in re.split(r" \\\\\n", re.sub(r"\\(top|mid|bottom)rule\n?", "", body)) if r.strip()]
        columns = re.findall(r"[lr]|p\{[^}]*\}", re.sub(r">\{[^}]*\}", "", spec))
        yield columns, [re.split(r"(?<!\\)&", r) for r in rows]


def test_what_means_something_to_tex_is_escaped():
    shown = escape(NASTY)
    assert shown.startswith(r"50 \% of a\_b \& c\# \$x\$ \{y\} \textasciitilde{} \textasciicircum{} \textbackslash{} ")
    assert r"\texttt{x\_1-y} $-$3" in shown and "\N{DAGGER}" in shown
    assert shown.endswith(r"1 $\leq$ 2 U+2208"), "a sign that the fonts lack is named, not lost"


@pytest.mark.parametrize("sheet", [numbers(3), numbers(2, 9), prose_table(3)], ids=["3", "9", "words"])
def test_every_row_has_a_cell_per_column(sheet):
    ((columns, rows),) = tabulars(latex(document(sheet)))
    assert len(columns) == len(sheet.head) and len(rows) == 1 + len(sheet.rows)
    assert {len(row) for row in rows} == {len(columns)}


def test_the_whole_reports_rows_too(usual):
    tables = list(tabulars(latex(build(usual))))
    assert len(tables) >= len(build(usual).tables) > 3
    assert all({len(row) for row in rows} == {len(columns)} for columns, rows in tables)


def test_a_long_table_goes_on_in_parts_of_a_page():
    sheet = numbers(100, notes=("one", "two"))
    parts = list(paged(sheet))
    assert len(parts) > 3 and all(1.8 * len(p.rows) <= PAGE_LINES for p in parts)
    assert [line for p in parts for line in p.rows] == list(sheet.rows)
    assert [p.notes for p in parts] == [()] * (len(parts) - 1) + [sheet.notes]
    text = latex(document(sheet))
    labels = re.findall(r"\\label\{(.*?)\}", text)
    assert len(set(labels)) == len(labels) == len(parts) and labels[0] == "tab:n"
    assert text.count("(Continued.)") == len(parts) - 1
    assert len({tuple(rows[0]) for _, rows in tabulars(text)}) == 1, "one heading"


def test_a_table_of_a_page_or_without_lines_stays_one():
    for num_lines in (0, 1, 20):
        assert list(paged(numbers(num_lines))) == [numbers(num_lines)]


def test_short_words_keep_their_width_and_long_ones_wrap():
    ((columns, _),) = tabulars(latex(document(prose_table(2))))
    first, second, third = columns
    assert second == "l", "short words"
    shares = [float(re.findall(r"p\{(.*)\\linewidth", column)[0]) for column in (first, third)]
    assert shares[0] < shares[1] and 0.6 < sum(shares) < 0.95
    assert "resizebox" not in latex(document(prose_table(2))), "words are never shrunk"


def test_the_text_of_the_page_is_in_the_file_before_the_tables(usual):
    text = latex(build(usual))
    verdict, main, ledger = (text.index(part) for part in ("No claim was named", "tab:e1-main", "tab:cells"))
    assert text.index("Results on DSA") < verdict < main < text.index("fig:e1-convergence") < ledger
    assert "\\subsection*{What surprised}" in text and "\\item {}RELIEF" in text


def test_a_heading_broken_before_a_bracket_is_no_length(usual):
    assert "vs fedavg at\\\\ equal rounds\\\\ {}[95 \\%]" in latex(build(usual))


def test_a_name_that_begins_with_a_bracket_is_no_length():
    assert "\n{}[0] 50" in latex(document(prose_table(1)))


@pytest.mark.parametrize(
    ("width_in", "kind", "width"),
    [(3.5, "figure", r"\linewidth"), (3.0, "figure", "3.00in"), (7.16, "figure*", r"\linewidth")],
)
def test_a_figure_is_no_wider_than_its_column(width_in, kind, width):
    plot = Figure(
        slug="p", caption="C.", draw=lambda figure: None, width_in=width_in, height_in=2.0, columns=("x",), rows=[]
    )
    text = latex(document(plot))
    assert f"\\begin{{{kind}}}" in text and f"[width={width}]" in text


def has_tex():
    """Whether there is a LaTeX with the journal's class."""
    if shutil.which("pdflatex") is None or shutil.which("kpsewhich") is None:
        return False
    return bool(subprocess.run(["kpsewhich", "IEEEtran.cls"], capture_output=True, text=True, check=False).stdout)


@pytest.mark.slow
@pytest.mark.skipif(not has_tex(), reason="no pdflatex with IEEEtran.cls")
def test_it_compiles_and_nothing_sticks_out(usual, tmp_path):
    pytest.importorskip("matplotlib")
    made = build(usual)
    write(made, tmp_path)
    tables = document(numbers(100, 9, notes=(NASTY,)), prose_table(60), numbers(0))
    (tmp_path / "tables.tex").write_text(latex(tables))
    for name in ("report", "tables"):
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", f"{name}.tex"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=300)
        log = (tmp_path / f"{name}.log").read_text(errors="replace")
        assert done.returncode == 0, done.stdout[-2000:]
        assert "Output written" in log
        assert not re.findall(r"^(?:!|Overfull|LaTeX Warning: Float too large).*", log, flags=re.M)
