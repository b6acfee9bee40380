"use strict";
// Draws the figures of the page, switches runs, follows light and dark, and in a live page asks for news.
(() => {
  const root = document.documentElement;
  const PALETTE = 8;
  let figures = JSON.parse(document.getElementById("figures").textContent);
  const hidden = new Set();
  const logs = new Set();

  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const colour = (i) => css("--c" + (i % PALETTE));
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  const coarse = matchMedia("(pointer: coarse)").matches;

  function styled(trace) {
    const meta = trace.meta || {};
    const out = { ...trace, visible: hidden.has(meta.run) ? false : true };
    if (meta.group !== undefined) {
      const c = meta.dim ? css("--soft") : colour(meta.group);
      const dash = ["solid", "dash", "dot", "dashdot", "longdash"][Math.floor(meta.group / PALETTE) % 5];
      out.line = { width: 1.5, color: c, dash, ...(trace.line || {}) };
      out.marker = { color: c, ...(trace.marker || {}) };
      if (trace.error_x) out.error_x = { ...trace.error_x, color: c };
      if (trace.mode === "markers+text") out.textfont = { color: c };
    }
    if (meta.part !== undefined) out.marker = { color: colour(meta.part) };
    if (meta.mark === "nonfinite") out.marker = { symbol: "x", size: 9, color: css("--bad") };
    if (meta.mark === "skip") out.marker = { symbol: "triangle-down", size: 10, color: css("--bad") };
    if (meta.mark === "peak") out.marker = { symbol: "line-ew", size: 40, line: { width: 2, color: css("--ink") } };
    if (meta.mark === "predicted") out.marker = { symbol: "diamond-open", size: 12, color: css("--ink") };
    if (meta.categories) Object.assign(out, bands(meta.categories, meta.neutral || []));
    if (meta.sequential) out.colorscale = [[0, css("--card")], [0.5, colour(0)], [1, css("--ink")]];
    return out;
  }

  // One flat colour for each name, grey for the neutral ones, and the names at the colour bar.
  function bands(names, neutral) {
    const n = names.length;
    const coloured = names.filter((name) => !neutral.includes(name));
    const of = (name) => (neutral.includes(name) ? css("--rule") : colour(coloured.indexOf(name)));
    const scale = names.flatMap((name, i) => [[i / n, of(name)], [(i + 1) / n, of(name)]]);
    return {
      zmin: -0.5, zmax: n - 0.5, colorscale: scale,
      colorbar: { tickvals: names.map((_, i) => i), ticktext: names, orientation: "h", thickness: 10, x: 0, xanchor: "left", y: 0, yanchor: "top", len: 1, tickfont: { size: 10 } },
    };
  }

  function layoutOf(figure, width) {
    const own = figure.layout;
    const axis = (given) => ({ gridcolor: css("--rule"), zerolinecolor: css("--rule"), linecolor: css("--rule"), automargin: true, ...(given || {}) });
    const y = axis(own.yaxis);
    if (logs.has(figure.key)) y.type = "log";
    const lines = figure.traces.filter((t) => (t.meta || {}).run !== undefined && !hidden.has(t.meta.run)).length;
    const narrow = width < 500;
    return {
      width, height: narrow ? (own.showlegend ? 460 : 260) : 320, hovermode: lines <= 6 ? "x unified" : "closest", showlegend: false, ...own,
      xaxis: axis(own.xaxis), yaxis: y,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: css("--ink"), size: 12, family: "system-ui, sans-serif" },
      hoverlabel: { bgcolor: css("--card"), bordercolor: css("--rule"), font: { color: css("--ink") }, namelength: 30 },
      margin: { l: 8, r: 12, t: 10, b: 8 }, dragmode: coarse ? false : "zoom",
      legend: narrow ? { orientation: "h", y: -0.15, yanchor: "top", x: 0 } : { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      modebar: { color: css("--soft"), activecolor: css("--ink"), bgcolor: "rgba(0,0,0,0)" },
      shapes: (own.shapes || []).map((s) => s.name === "limit"
        ? { ...s, line: { color: css("--ink"), width: 1.5, dash: "dash" } }
        : { ...s, fillcolor: css("--band"), line: { width: 0 }, layer: "below" }),
      uirevision: logs.has(figure.key) ? "log" : "linear",
    };
  }

  function draw(figure) {
    const box = document.querySelector("#figure-" + figure.key + " .plot");
    if (!box) return false;
    const width = box.clientWidth;
    Plotly.react(box, figure.traces.map(styled), layoutOf(figure, width), {
      responsive: false, displaylogo: false, displayModeBar: coarse ? true : "hover",
      modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"], doubleClick: "reset",
    });
    return true;
  }
  const drawAll = () => figures.every(draw);

  // Plotly's own resizing takes the height from the box, which has none: each figure is laid out anew for its width.
  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const figure = figures.find((f) => "figure-" + f.key === target.parentElement.id);
      if (figure && target.layout && target.layout.width !== target.clientWidth) draw(figure);
    }
  });
  for (const box of document.querySelectorAll(".plot")) resized.observe(box);

  function theme(name) {
    root.dataset.theme = name;
    for (const s of document.querySelectorAll(".switch")) s.style.setProperty("--swatch", colour(Number(s.dataset.group)));
    drawAll();
  }
  preferred.addEventListener("change", (e) => theme(e.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => theme(root.dataset.theme === "dark" ? "light" : "dark"));

  const runsOf = (button) => button.dataset.runs.split(",").map(Number);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.runs) {
      const on = button.getAttribute("aria-pressed") === "true";
      for (const run of runsOf(button)) on ? hidden.add(run) : hidden.delete(run);
      for (const b of document.querySelectorAll("button[data-runs]"))
        b.setAttribute("aria-pressed", String(runsOf(b).some((run) => !hidden.has(run))));
      drawAll();
    } else if (button.classList.contains("log")) {
      const key = button.closest("figure").id.slice("figure-".length);
      logs.has(key) ? logs.delete(key) : logs.add(key);
      button.setAttribute("aria-pressed", String(logs.has(key)));
      draw(figures.find((f) => f.key === key));
    }
  });

  let before = null;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    theme("light");
    for (const box of document.querySelectorAll(".plot")) Plotly.relayout(box, { width: 680 });
  });
  addEventListener("afterprint", () => {
    theme(before || "light");
  });

  async function news(period) {
    const pulse = document.getElementById("pulse");
    let mark = "";
    for (;;) {
      await new Promise((done) => setTimeout(done, period));
      try {
        const answer = await fetch("data.json", { headers: mark ? { "If-None-Match": mark } : {}, cache: "no-store" });
        pulse.className = "";
        if (answer.status === 304) continue;
        if (!answer.ok) throw new Error(String(answer.status));
        mark = answer.headers.get("ETag") || "";
        const page = await answer.json();
        figures = page.figures;
        const same = page.shape === root.dataset.shape || !root.dataset.shape;
        root.dataset.shape = page.shape;
        for (const [key, text] of Object.entries(page.sections)) {
          const place = document.querySelector("#" + key + " .text");
          if (place) place.innerHTML = text;
        }
        if (!same || !drawAll()) location.reload();
        pulse.textContent = "live: " + new Date().toLocaleTimeString();
      } catch (error) {
        pulse.className = "lost";
        pulse.textContent = "no longer served";
      }
    }
  }

  theme(preferred.matches ? "dark" : "light");
  if (root.dataset.live) news(Number(root.dataset.live));
})();
