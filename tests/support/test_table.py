"""A table in every format: aligned text, Markdown, HTML, LaTeX, CSV, with special characters."""

import csv
import io
import re

import pytest

from relief_ray.support.table import Cell, Row, Table, inline, latex, word_table

NASTY = "a_b & 50 % of <i> | `x_1` -3"


def figures(**more):
    entry = Cell(text="1.0", below="paper 2", origin="measured", numbers={"mean": 1.0, "n": 2, "paper": 2.0})
    fitted = Cell(text="3.0", origin="FITTED", numbers={"mean": 3.0})
    lines = (Row(name="m", cells=(entry,)), Row(name="k", cells=(entry,)), Row(name=NASTY, cells=(fitted,)))
    return Table(slug="t", caption="C.", head=("method", "F1"), rows=lines, **more)


def test_special_characters_survive_every_format():
    assert inline(NASTY) == "a_b &amp; 50&nbsp;% of &lt;i&gt; | <code>x_1</code> \N{MINUS SIGN}3"
    assert latex(NASTY) == r"a\_b \& 50 \% of $<$i$>$ | \texttt{x\_1} $-$3"
    assert "\\|" in word_table(["h", "v"], [["x", NASTY]]).markdown()


def test_a_hyphen_inside_a_word_or_code_is_no_minus():
    assert inline("seed-0 `a-1` 3-4") == "seed-0 <code>a-1</code> 3-4"
    assert inline("Mine (beta=-0.5)") == latex("Mine (beta=-0.5)") == "Mine (beta=-0.5)", "a name is copied as typed"


def test_the_usual_origin_stands_in_the_heading_others_in_their_cell():
    assert figures().origins == ["measured"]
    page = figures().html()
    assert page.count("<span class='origin fitted'>") == 1
    assert "class='origin measured'" not in page, "what bears no mark was measured"
    text = figures().markdown()
    assert "F1 (measured)" in text and "3.0 FITTED" in text
    assert "3.0 FITTED" in figures().latex()


def test_csv_has_a_line_per_cell():
    rows = list(csv.DictReader(io.StringIO(figures().csv())))
    assert [r["row"] for r in rows] == ["m", "k", NASTY]
    assert (rows[0]["column"], rows[0]["mean"], rows[0]["paper"], rows[0]["deviation"]) == ("F1", "1.0", "2.0", "")


def test_csv_of_words_is_the_table():
    sheet = word_table(["h", "v"], [["x", "1, 2"]])
    assert sheet.csv() == 'h,v\nx,"1, 2"\n'


def test_a_table_is_split_evenly():
    cells = tuple(Cell(text=text) for text in "123")
    table = Table(slug="t", caption="", head=("method", "one", "two", "three"), rows=(Row(name="a", cells=cells),))
    assert table.fitted(23) == [table]
    assert [t.head for t in table.fitted(22)] == [("method", "one", "two"), ("method", "three")]
    alone = [("method", "one"), ("method", "two"), ("method", "three")]
    assert [t.head for t in table.fitted(15)] == alone
    assert [t.head for t in table.fitted(1)] == alone, "no column is ever cut"


def test_a_long_heading_takes_two_lines_where_its_cells_are_narrower():
    row = Row(name="a", cells=(Cell(text="1"), Cell(text="1234567890123456"), Cell(text="2")))
    head = ("method", "rounds to 85 %", "rounds to 85 %", "total's rounds")
    table = Table(slug="t", caption="", head=head, rows=(row, Row(name="b", cells=row.cells, rule=True)))
    rule = "------  -------  ----------------  -------"
    assert table.text().splitlines() == [
        "         rounds                    total's",
        "method  to 85 %    rounds to 85 %   rounds",
        rule,
        "a             1  1234567890123456        2",
        rule,
        "b             1  1234567890123456        2",
    ]
    assert table.fitted(len(rule)) == [table] != table.fitted(len(rule) - 1)


def test_what_means_something_to_tex_is_escaped():
    shown = latex("$x$ {y} ~ ^ \\ | `x_1-y` -3 \N{DAGGER} 1 \N{LESS-THAN OR EQUAL TO} 2 \N{ELEMENT OF}")
    assert shown.startswith(r"\$x\$ \{y\} \textasciitilde{} \textasciicircum{} \textbackslash{} ")
    assert r"\texttt{x\_1-y} $-$3" in shown and "\N{DAGGER}" in shown
    assert shown.endswith(r"1 $\leq$ 2 U+2208"), "a sign that the fonts lack is named, not lost"


@pytest.mark.parametrize(
    "sheet",
    [figures(notes=(NASTY,)), figures(second="second & line"), word_table(["* name", "v, w"], [["[0]", NASTY]])],
    ids=["figures", "second", "words"],
)
def test_every_row_of_latex_has_a_cell_per_column(sheet):
    ((spec, body),) = re.findall(r"\\begin\{tabular\}\{([^\n]*)\}\n(.*?)\\end\{tabular\}", sheet.latex(), flags=re.S)
    rows = [r for r in re.split(r" \\\\\n", re.sub(r"\\(top|mid|bottom)rule\n?", "", body)) if r.strip()]
    assert len(rows) == 1 + len(sheet.rows)
    assert (
        {len(re.split(r"(?<!\\)&", row)) for row in rows}
        == {len(sheet.head)}
        == {len(re.findall("[lr]|p{", re.sub("linewidth", "", spec)))}
    )


def test_a_bracket_or_star_after_a_line_break_is_no_length():
    text = word_table(["* name", "v"], [["[0]", "x"]]).latex()
    assert "\n{}[0] & x" in text and "\n{}* name & v" in text
