"use strict";
(function () {
  const dark = matchMedia("(prefers-color-scheme: dark)");

  // Charts are canvases: they cannot follow the style sheet by themselves.
  function look(kind) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const text = colour("--text"), quiet = colour("--quiet"), line = colour("--line"), card = colour("--card");
    if (kind === "Figure") {
      return { background_fill_color: card, border_fill_color: card, outline_line_color: line };
    }
    if (kind.endsWith("Axis")) {
      return {
        axis_label_text_color: quiet, major_label_text_color: quiet, axis_line_color: line,
        major_tick_line_color: line, minor_tick_line_color: null, axis_label_text_font_style: "normal",
        axis_label_text_font_size: "13px", major_label_text_font_size: "12px",
      };
    }
    if (kind === "Grid") return { grid_line_color: line, grid_line_alpha: 0.7 };
    if (kind === "Title") return { text_color: text, text_font_size: "14px" };
    if (kind === "Legend") {
      return {
        label_text_color: text, background_fill_color: card, background_fill_alpha: 0.75, border_line_color: null,
        label_text_font_size: "12px",
      };
    }
    return null;
  }

  // Before a chart is drawn its description is painted, so that it is drawn once.
  function paintDescription(node) {
    if (node === null || typeof node !== "object") return;
    const colours = typeof node.name === "string" && node.type === "object" ? look(node.name) : null;
    if (colours) node.attributes = Object.assign(node.attributes || {}, colours);
    for (const value of Object.values(node)) paintDescription(value);
  }

  function repaint() {
    for (const doc of Bokeh.documents) {
      for (const root of doc.roots()) {
        for (const model of root.references()) {
          const colours = look(model.type);
          if (colours) model.setv(colours);
        }
      }
    }
  }

  // Charts on the screen are drawn first, the others one by one right after: the first look costs little.
  async function draw() {
    const items = JSON.parse(document.getElementById("chart-data").textContent);
    items.forEach(paintDescription);
    const top = (item) => document.getElementById(item.target_id).getBoundingClientRect().top;
    const inView = items.filter((item) => top(item) < innerHeight);
    const below = items.filter((item) => !inView.includes(item));
    await Promise.all(inView.map((item) => Bokeh.embed.embed_item(item)));
    document.body.dataset.renderedMs = Math.round(performance.now());
    for (const item of below) {
      await new Promise((resume) => setTimeout(resume, 20));
      await Bokeh.embed.embed_item(item);
    }
    document.body.dataset.completeMs = Math.round(performance.now());
    dark.addEventListener("change", repaint);
  }

  function fates() {
    const rows = JSON.parse(document.getElementById("fate-data").textContent);
    const body = document.querySelector("#fate-table tbody");
    const filter = document.getElementById("fate-filter"), find = document.getElementById("fate-find");
    const back = document.getElementById("fate-back"), on = document.getElementById("fate-on");
    const size = 12;
    let page = 0;

    function show() {
      const wanted = find.value.trim();
      const chosen = rows.filter((row) => (!filter.value || row[1] === filter.value) && row[0].includes(wanted));
      const last = Math.max(Math.ceil(chosen.length / size) - 1, 0);
      page = Math.min(Math.max(page, 0), last);
      const part = chosen.slice(page * size, (page + 1) * size);
      body.replaceChildren(...part.map((row) => {
        const line = document.createElement("tr");
        row.forEach((value, column) => {
          const cell = line.insertCell();
          cell.textContent = value === null ? "-" : value;
          if (column > 1) cell.className = "n";
        });
        return line;
      }));
      const first = chosen.length ? page * size + 1 : 0;
      document.getElementById("fate-place").textContent = `${first} - ${page * size + part.length} of ${chosen.length}`;
      back.disabled = page === 0;
      on.disabled = page === last;
    }
    back.addEventListener("click", () => { page -= 1; show(); });
    on.addEventListener("click", () => { page += 1; show(); });
    for (const input of [filter, find]) input.addEventListener("input", () => { page = 0; show(); });
    show();
  }

  fates();
  draw();
})();
