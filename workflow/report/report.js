"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => {
    button.setAttribute("aria-pressed", String(isDark()));
  };
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    show();
  });
  system.addEventListener("change", show);
  show();

  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.sort !== undefined ? Number(cell.dataset.sort) : cell.textContent.trim();
  };
  // Numbers first, in order; cells without one come last whichever way the column is sorted.
  const compare = (a, b, sign) => {
    const numeric = [typeof a === "number", typeof b === "number"];
    if (numeric[0] && numeric[1]) return sign * (a - b);
    if (numeric[0] !== numeric[1]) return numeric[0] ? -1 : 1;
    return sign * a.localeCompare(b, "en", { numeric: true });
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    // On a phone every row is a card of labelled lines, so that no verdict is out of sight; as
    // blocks they would lose what they are to a screen reader, if they did not say it.
    const names = heads.map((head) => head.textContent.trim());
    table.classList.add("cards");
    table.setAttribute("role", "table");
    for (const row of table.rows) {
      row.setAttribute("role", "row");
      [...row.cells].forEach((cell, index) => {
        cell.setAttribute("role", cell.tagName === "TH" ? "columnheader" : "cell");
        if (cell.tagName === "TD") cell.dataset.label = names[index];
      });
    }
    heads.forEach((head, column) => {
      head.firstElementChild.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const rows = [...table.tBodies[0].rows].map((row) => [value(row, column), row]);
        rows.sort((a, b) => compare(a[0], b[0], up ? 1 : -1));
        table.tBodies[0].append(...rows.map((entry) => entry[1]));
      });
    });
    const text = document.querySelector(`[data-filter="${table.id}"]`);
    const verdict = document.querySelector(`[data-verdict="${table.id}"]`);
    const count = document.querySelector(`[data-count="${table.id}"]`);
    if (!text) continue;
    const filter = () => {
      const wanted = text.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of table.tBodies[0].rows) {
        const content = row.textContent.toLowerCase();
        const hit = wanted.every((word) => content.includes(word));
        const tone = !verdict.value || row.querySelector(`[data-tone="${verdict.value}"]`);
        row.hidden = !(hit && tone);
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = `${shown} of ${table.tBodies[0].rows.length} rows`;
    };
    text.addEventListener("input", filter);
    verdict.addEventListener("change", filter);
    filter();
  }

  // A mark's value, interval and n: under the pointer, at a touch, or by the arrow keys.
  const tip = document.getElementById("tip");
  const REACH = 12;
  let shown = null;
  const show_mark = (mark, x, y) => {
    if (shown && shown !== mark) shown.classList.remove("shown");
    shown = mark;
    tip.hidden = !mark;
    if (!mark) return;
    mark.classList.add("shown");
    if (tip.textContent !== mark.dataset.tip) tip.textContent = mark.dataset.tip;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - box.width - 4))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? y - box.height - 8 : y + 18}px`;
  };
  const centre = (mark) => {
    const box = mark.getBoundingClientRect();
    return [box.x + box.width / 2, box.y + box.height / 2];
  };
  const away = (mark, x, y) => {
    const box = mark.getBoundingClientRect();
    return Math.hypot(
      Math.max(box.left - x, 0, x - box.right),
      Math.max(box.top - y, 0, y - box.bottom),
    );
  };
  const nearest = (event) => {
    const figure = event.target instanceof Element ? event.target.closest("figure svg") : null;
    if (!figure) return null;
    const own = event.target.closest("[data-tip]");
    if (own) return own;
    let [best, least] = [null, REACH];
    for (const mark of figure.querySelectorAll("[data-tip]")) {
      const distance = away(mark, event.clientX, event.clientY);
      if (distance < least) [best, least] = [mark, distance];
    }
    return best;
  };
  for (const name of ["pointermove", "pointerdown"]) {
    document.addEventListener(name, (event) =>
      show_mark(nearest(event), event.clientX, event.clientY),
    );
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") show_mark(null);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const figure = event.target instanceof Element ? event.target.closest("figure .scroll") : null;
    if (!step || !figure) return;
    const marks = [...figure.querySelectorAll("[data-tip]")];
    if (!marks.length) return;
    event.preventDefault();
    const next = marks.indexOf(shown) + step;
    const mark = marks[next === -2 ? marks.length - 1 : (next + marks.length) % marks.length];
    mark.scrollIntoView({ block: "nearest", inline: "nearest" });
    show_mark(mark, ...centre(mark));
  });
  addEventListener("beforeprint", () => {
    for (const entry of document.querySelectorAll("details")) entry.open = true;
  });
})();
