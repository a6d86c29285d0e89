"use strict";
(function () {
  const idle = () => new Promise((resume) => (window.requestIdleCallback ?? setTimeout)(resume));

  // Charts on the screen are drawn first, the others one by one whenever there is nothing else to do.
  async function draw() {
    Bokeh.logger.set_level("warn");
    const items = JSON.parse(document.getElementById("chart-data").textContent);
    const isOnScreen = (item) => document.getElementById(item.target_id).getBoundingClientRect().top < innerHeight;
    const onScreen = items.filter(isOnScreen);
    await Promise.all(onScreen.map((item) => Bokeh.embed.embed_item(item)));
    for (const item of items.filter((item) => !onScreen.includes(item))) {
      await idle();
      await Bokeh.embed.embed_item(item);
    }
    document.body.dataset.completeMs = Math.round(performance.now());
    // The style sheet follows the colour scheme by itself, a canvas must be painted again.
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      for (const chart of Bokeh.documents.flatMap((each) => each.roots())) chart.change.emit();
    });
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
