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

  draw();
})();
