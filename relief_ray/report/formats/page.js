"use strict";
document.documentElement.classList.add("scripted");
// A click on a method's name hides or shows it in all views of the figure.
for (const figure of document.querySelectorAll("figure")) {
  for (const name of figure.querySelectorAll("[id$='-name']")) {
    const part = name.id.match(/-(m\d+)-name$/);
    if (!part) continue;
    const toggle = () => {
      const hidden = name.classList.toggle("off");
      for (const e of figure.querySelectorAll(`[id*='-${part[1]}-']`)) {
        if (e.id.endsWith("-name") || e.id.endsWith("-key")) e.classList.toggle("off", hidden);
        else e.style.display = hidden ? "none" : "";
      }
      name.setAttribute("aria-pressed", String(!hidden));
    };
    clickable(name, toggle);
    name.setAttribute("aria-pressed", "true");
  }
  // A click on a client's bar opens its reasons.
  for (const answer of figure.querySelectorAll(".answer")) {
    const bar = document.getElementById(answer.id.replace("-answer-", "-"));
    if (!bar) continue;
    bar.setAttribute("aria-label", answer.firstElementChild.textContent);
    clickable(bar, () => { answer.open = true; answer.scrollIntoView({ block: "nearest" }); });
  }
}
function clickable(element, act) {
  element.classList.add("click");
  element.setAttribute("tabindex", "0");
  element.setAttribute("role", "button");
  element.addEventListener("click", act);
  element.addEventListener("keydown", (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); act(); } });
}
// A click on a heading sorts the rows, a second one turns them round; a long table has a filter.
const value = (row, column) => {
  const cell = row.cells[column];
  const text = cell.firstChild ? cell.firstChild.textContent.trim() : "";
  const number = parseFloat(text.replace(/\u2212/g, "-").replace(/,/g, ""));
  return Number.isNaN(number) ? text : number;
};
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  if (!body || body.rows.length < 3) continue;
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    clickable(head, () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...body.rows].map((row) => [value(row, column), row]);
      const number = ([v]) => typeof v === "number";
      rows.sort((a, b) => number(a) !== number(b) ? (number(a) ? -1 : 1)
        : (number(a) ? a[0] - b[0] : a[0].localeCompare(b[0])) * (down === number(a) ? -1 : 1));
      body.append(...rows.map(([, row]) => row));
    });
    head.setAttribute("role", "columnheader");
  });
  if (body.rows.length > 12) {
    const field = document.createElement("input");
    field.type = "search";
    field.placeholder = "filter rows";
    field.setAttribute("aria-label", "Filter the rows of this table");
    field.addEventListener("input", () => {
      for (const row of body.rows) row.hidden = !row.textContent.toLowerCase().includes(field.value.toLowerCase());
    });
    table.before(field);
  }
}
// What an address names is shown, also where it is folded.
const open = () => {
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let e = target; e; e = e.parentElement) if (e.tagName === "DETAILS") e.open = true;
  const inside = target.querySelector("details");
  if (inside && target.tagName === "SECTION") inside.open = true;
  target.scrollIntoView();
};
addEventListener("hashchange", open);
open();
