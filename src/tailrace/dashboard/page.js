"use strict";
(function () {
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
})();
