"""The page in a real browser: names hide methods, rows sort, the switch, answers, addresses; contrast and width.

Chromium is started without a window; a script behind the page's own clicks and writes what it found into the page.
"""

import html as web
import json
import re
import shutil
import subprocess

import pytest

from relief_ray.report.build import build, write
from relief_ray.report.document import Document, Figure, Section

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
]
PROBE = """
<script>
const errors = [];
addEventListener("error", (e) => errors.push(String(e.message)));
const found = {};
try {
const click = (e) => e.dispatchEvent(new MouseEvent("click", { bubbles: true }));
const names = (table) => [...table.tBodies[0].rows].map((row) => row.cells[0].textContent);
const figure = document.getElementById("e1-convergence");
const shown = () => [...figure.querySelectorAll(".view")].map((v) => getComputedStyle(v).display);
found.before = shown();
figure.querySelectorAll("label")[1].click();
found.after = shown();
const name = figure.querySelector("[id$='-name']");
const part = name.id.match(/m\\d+/)[0];
const curves = () => [...figure.querySelectorAll(`[id$='-${part}-curve']`)].map((e) => getComputedStyle(e).display);
found.curves = curves();
click(name);
found.hidden = curves();
name.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
found.shown = curves();
const table = document.querySelector("#e1-main table");
const head = [...table.tHead.rows[0].cells].find((cell) => cell.textContent.startsWith("F1"));
const scores = () => [...table.tBodies[0].rows].map((row) => parseFloat(row.cells[head.cellIndex].textContent));
found.rows = names(table);
click(head);
found.descending = scores();
found.sorted = names(table);
click(head);
found.ascending = scores();
const bar = document.getElementById("e1-round-p1-c2");
click(bar);
found.answer = document.getElementById("e1-round-answer-p1-c2").open;
found.folded = document.querySelector("#e1-data details").open;
location.hash = "#e1-data";
dispatchEvent(new HashChangeEvent("hashchange"));
found.unfolded = document.querySelector("#e1-data details").open;
for (const details of document.querySelectorAll("details")) details.open = true;
for (const label of figure.querySelectorAll("label")) label.click();
found.width = document.documentElement.scrollWidth;
found.window = innerWidth;
const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
  .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (e) => {
  for (; e; e = e.parentElement) {
    const back = channels(getComputedStyle(e).backgroundColor);
    if (back.length < 4 || back[3] > 0) return back;
  }
  return [255, 255, 255];
};
found.pale = [];
for (const e of document.querySelectorAll("body *:not(script):not(style)")) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || e.closest(".anchor")) continue;
  const style = getComputedStyle(e);
  const [a, b] = [light(channels(e.closest("svg") ? style.fill : style.color)), light(behind(e))];
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < 4.5) found.pale.push([e.textContent.slice(0, 40), contrast]);
}
} catch (error) {
  errors.push(String(error));
}
found.errors = errors;
const out = document.createElement("pre");
out.id = "found";
out.textContent = JSON.stringify(found);
document.body.append(out);
</script>
"""


def browse(page, width):
    """What the probe found in the page in a window of that width, and the whole document."""
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--dump-dom",
        f"--user-data-dir={page.parent / 'profile'}", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    return (json.loads(web.unescape(found[1])) if found else {}), done.stdout


# A window of a telephone: a browser's own has 500 pixels at least.
PHONE = """<!doctype html><iframe id="inner" style="width: 400px; height: 900px; border: 0" srcdoc="{}"></iframe>
<script>
const frame = document.getElementById("inner");
frame.addEventListener("load", () => document.body.append(frame.contentDocument.getElementById("found")));
</script>"""
# Looks into a page that runs no script.
OUTSIDE = """<!doctype html><iframe id="inner" sandbox="allow-same-origin" srcdoc="{}"></iframe>
<script>
const frame = document.getElementById("inner");
frame.addEventListener("load", () => {{
  const inner = frame.contentDocument, figure = inner.getElementById("e1-convergence");
  const shown = () => [...figure.querySelectorAll(".view")].map((v) => frame.contentWindow.getComputedStyle(v).display);
  const found = {{ before: shown(), filters: inner.querySelectorAll("input[type=search]").length }};
  figure.querySelectorAll("input")[2].checked = true;
  found.after = shown();
  found.buttons = inner.querySelectorAll("[role=button]").length;
  const answer = inner.getElementById("e1-round-answer-p1-c2");
  found.answer = answer.textContent;
  const out = document.createElement("pre");
  out.id = "found";
  out.textContent = JSON.stringify(found);
  document.body.append(out);
}});
</script>"""


def framed(page, frame):
    """A page that holds the page in a frame."""
    outside = page.with_name("outside.html")
    outside.write_text(frame.format(web.escape(page.read_text(), quote=True)))
    return outside


@pytest.fixture
def page(usual, tmp_path):
    """The report of the usual runs, with an answer for each client of the last round, and the probe behind it."""
    document = build(usual, explain=lambda loaded, round_, clients: dict.fromkeys(clients, f"{loaded.label}: <why>"))
    write(document, tmp_path / "report")
    file = tmp_path / "report" / "index.html"
    file.write_text(file.read_text().replace("</body>", f"{PROBE}</body>"))
    return file


def test_the_page_answers_clicks_and_keys(page):
    found, _ = browse(page, 1300)
    assert found["errors"] == []
    assert found["before"] == ["block", "none", "none", "none"] and found["after"] == ["none", "block", "none", "none"]
    assert set(found["curves"]) == {"inline"} and set(found["hidden"]) == {"none"} and set(found["shown"]) == {"inline"}
    assert len(found["curves"]) == 4, "the method is hidden in every view"
    assert found["descending"] == sorted(found["ascending"], reverse=True) == found["ascending"][::-1]
    assert sorted(found["rows"]) == sorted(found["sorted"]) and found["rows"] != found["sorted"]
    assert found["answer"] is True and (found["folded"], found["unfolded"]) == (False, True)


def test_on_a_phone_nothing_is_wider_than_the_window_and_nothing_is_pale(page):
    found, _ = browse(framed(page, PHONE), 500)
    assert found["width"] <= found["window"] == 400
    assert found["pale"] == []


def test_without_a_script_everything_is_there(page):
    """The switch is the style's alone; answers and rows stand as they are written."""
    found, _ = browse(framed(page, OUTSIDE), 1300)
    assert found["before"] == ["block", "none", "none", "none"] and found["after"] == ["none", "none", "block", "none"]
    assert found["answer"].endswith("relief: <why>") and found["filters"] == found["buttons"] == 0


def test_a_figure_of_one_view_has_no_switch(tmp_path):
    figure = Figure(caption="C.", draw=lambda sheet: None, height_in=1.0, columns=("x",), rows=((1,),), slug="f")
    section = Section(title="S", slug="s", blocks=(figure,))
    write(Document(title="T", lead="L", sections=(section,), footer="F"), tmp_path)
    _, text = browse(tmp_path / "index.html", 1300)
    assert "<input" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL) and text.count("<svg") == 1
