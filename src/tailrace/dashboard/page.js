"use strict";
(function () {
  const WIDTH = 1000, HEIGHT = 100;  // of the plane every chart is drawn in
  const tips = JSON.parse(document.getElementById("tip-data").textContent);
  const bubble = document.getElementById("tip");

  // The part of its plane that a chart shows, from left to right.
  const shown = (svg) => [svg.viewBox.baseVal.x, svg.viewBox.baseVal.width];

  function place(svg, event) {
    const box = svg.getBoundingClientRect();
    const [left, width] = shown(svg);
    return [left + width * (event.clientX - box.left) / box.width, HEIGHT * (event.clientY - box.top) / box.height];
  }

  function explain(chart) {
    const svg = chart.querySelector("svg"), known = tips[chart.id.replace("chart-", "")];
    svg.addEventListener("pointermove", (event) => {
      const [x, y] = place(svg, event);
      const tip = known.find(([left, right, top, bottom]) => left <= x && x < right && top <= y && y < bottom);
      bubble.hidden = !tip;
      if (!tip) return;
      bubble.textContent = tip[4];
      bubble.style.left = Math.min(event.clientX + 14, innerWidth - bubble.offsetWidth - 8) + "px";
      bubble.style.top = Math.min(event.clientY + 14, innerHeight - bubble.offsetHeight - 8) + "px";
    });
    svg.addEventListener("pointerleave", () => { bubble.hidden = true; });
  }

  // Round numbers for a shorter piece of the axis, as the page was made with for the whole.
  function ticks(low, high) {
    const rough = (high - low) / 10, scale = 10 ** Math.floor(Math.log10(rough));
    const step = scale * [1, 2, 5, 10].find((factor) => scale * factor >= rough * 0.999);
    const first = Math.ceil(low / step), count = Math.floor(high / step) - first + 1;
    return Array.from({ length: count }, (_, number) => Number(((first + number) * step).toPrecision(10)));
  }

  function look(chart, left, width) {
    const [low, high] = chart.dataset.zoom.split(" ").map(Number);
    const value = (x) => low + (high - low) * x / WIDTH, x = (second) => WIDTH * (second - low) / (high - low);
    const marks = ticks(value(left), value(left + width));
    chart.querySelector("svg").setAttribute("viewBox", `${left} 0 ${width} ${HEIGHT}`);
    chart.querySelector(".grid").setAttribute("d", marks.map((mark) => `M${x(mark)} 0V${HEIGHT}`).join(""));
    chart.querySelector(".x-labels").replaceChildren(...marks.map((mark) => {
      const label = document.createElement("span");
      label.textContent = mark.toLocaleString("en");
      label.style.left = 100 * (x(mark) - left) / width + "%";
      return label;
    }));
  }

  function zoom(chart) {
    const svg = chart.querySelector("svg"), smallest = WIDTH / 2000;
    let from = null;
    svg.addEventListener("pointerdown", (event) => { from = place(svg, event)[0]; svg.setPointerCapture(event.pointerId); });
    svg.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const [left, right] = [from, place(svg, event)[0]].sort((a, b) => a - b).map((x) => Math.min(Math.max(x, 0), WIDTH));
      from = null;
      if (right - left > Math.max(smallest, shown(svg)[1] / 200)) look(chart, left, right - left);
    });
    svg.addEventListener("dblclick", () => look(chart, 0, WIDTH));
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

  document.querySelectorAll(".chart").forEach(explain);
  document.querySelectorAll("[data-zoom]").forEach(zoom);
  fates();
  document.body.dataset.completeMs = Math.round(performance.now());
})();
