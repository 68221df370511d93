"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = read("figures"), runs = read("runs"), root = document.documentElement;
  const SCALES = { light: ["#6aa329", "#1f9e89", "#277f8e", "#3b528b", "#440154"], dark: ["#5b8fd0", "#2ea6a0", "#5ec962", "#b8de29", "#fff09a"] };
  const SCHEMES = { light: ["#c4500b", "#0072b2", "#00805c", "#8a4f9e", "#6b6b00", "#444444"], dark: ["#ff9e5e", "#6bb8f0", "#3ddba8", "#d59be8", "#d6d05a", "#bbbbbb"] };
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const theme = () => root.dataset.theme || (system.matches ? "dark" : "light");
  const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));

  function sequential(i, n) {
    const stops = SCALES[theme()], at = n > 1 ? (i / (n - 1)) * (stops.length - 1) : stops.length - 1;
    const k = Math.min(Math.floor(at), stops.length - 2), f = at - k, a = rgb(stops[k]), b = rgb(stops[k + 1]);
    return "rgb(" + a.map((v, j) => Math.round(v + f * (b[j] - v))).join(",") + ")";
  }

  function colour(name) {
    const size = /^@(\d+)\/(\d+)$/.exec(name), scheme = /^#(\d)$/.exec(name);
    if (size) return sequential(+size[1], +size[2]);
    if (scheme) return SCHEMES[theme()][+scheme[1] % 6];
    const variable = { "@ink": "--ink", "@muted": "--muted", "@grid": "--grid", "@paper": "--paper", "@stable": "--good", "@some": "--open", "@none": "--bad" }[name];
    return variable ? getComputedStyle(root).getPropertyValue(variable).trim() : name;
  }

  // Only fields called color hold the names; text that users wrote is never looked at.
  function resolved(value, key) {
    if (Array.isArray(value)) return value.map((v) => resolved(v, key));
    if (value && typeof value === "object") return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, resolved(v, k)]));
    return key === "color" && typeof value === "string" ? colour(value) : value;
  }

  function layout(given) {
    const axis = { gridcolor: colour("@grid"), linecolor: colour("@grid"), zerolinecolor: colour("@grid"), automargin: true, fixedrange: false };
    const own = resolved(given, "");
    const out = { font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("@muted") }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 56, r: 12, t: 12, b: 48 }, showlegend: false, hovermode: "closest", dragmode: false, hoverlabel: { bgcolor: colour("@paper"), bordercolor: colour("@muted"), font: { color: colour("@ink"), size: 13 }, align: "left" }, ...own };
    for (const name of ["xaxis", "yaxis"]) out[name] = { ...axis, ...(own[name] || {}) };
    return out;
  }

  const CONFIG = { responsive: true, displaylogo: false, displayModeBar: "hover", modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"], toImageButtonOptions: { format: "svg" } };
  const hidden = new Map();
  const groupOf = (node) => node.closest(".group");

  function visible(node, trace) {
    const off = hidden.get(groupOf(node));
    return !(off && off.has(trace.meta));
  }

  function paint(node) {
    const figure = node.id === "runs-plot" ? training() : figures[node.dataset.figure];
    if (!figure) return;
    const data = figure.data.map((t) => ({ ...resolved(t, ""), visible: visible(node, t) }));
    const extra = node.id === "runs-plot" || (!groupOf(node) && !node.dataset.figure.includes("-stability-")) ? { showlegend: figure.data.length > 1 && figure.data.length <= 20, legend: { orientation: "h", y: -0.25 } } : {};
    Plotly.react(node, data, layout({ ...figure.layout, ...extra }), CONFIG);
    node.dataset.drawn = "yes";
  }

  const plots = () => [...document.querySelectorAll(".plot")];
  const repaint = () => plots().filter((n) => n.dataset.drawn && n.offsetParent).forEach(paint);

  // Figures are drawn when they come near the screen: a long page opens at once.
  const near = new IntersectionObserver((entries) => {
    for (const e of entries) if (e.isIntersecting && !e.target.dataset.drawn) paint(e.target);
  }, { rootMargin: "600px" });

  function swatches() {
    for (const s of document.querySelectorAll(".swatch")) s.style.background = colour(s.dataset.colour);
  }

  for (const chip of document.querySelectorAll(".chip")) {
    chip.addEventListener("click", () => {
      const group = groupOf(chip), off = hidden.get(group) || new Set(), on = chip.getAttribute("aria-pressed") === "true";
      chip.setAttribute("aria-pressed", String(!on));
      if (on) off.add(chip.dataset.key); else off.delete(chip.dataset.key);
      hidden.set(group, off);
      [...group.querySelectorAll(".plot")].filter((n) => n.dataset.drawn).forEach(paint);
    });
  }

  const tabs = [...document.querySelectorAll('[role="tab"]')];
  function choose(tab) {
    for (const t of tabs) {
      const on = t === tab;
      t.setAttribute("aria-selected", String(on));
      t.tabIndex = on ? 0 : -1;
      document.getElementById(t.getAttribute("aria-controls")).hidden = !on;
    }
    repaint();
  }
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (e) => {
      const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1 }[e.key];
      if (to === undefined) return;
      e.preventDefault();
      const next = tabs[(to + tabs.length) % tabs.length];
      choose(next);
      next.focus();
    });
  });

  const escaped = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const sizeOf = (r) => "width " + r.width + ", depth " + r.depth;
  const schemePick = document.getElementById("pick-scheme"), sizePick = document.getElementById("pick-size");

  function fill(select, values, keep) {
    select.replaceChildren(...values.map((v) => { const o = document.createElement("option"); o.value = o.textContent = v; return o; }));
    select.value = values.includes(keep) ? keep : values[values.length - 1];
  }

  function training() {
    const kinds = { best: ["#2", "solid"], "the base's": ["#1", "dash"], diverged: ["#0", "dot"] };
    const mine = runs.filter((r) => r.scheme === schemePick.value && sizeOf(r) === sizePick.value), seen = new Set();
    const data = mine.map((r) => {
      const first = !seen.has(r.kind), rate = Number(r.value.toPrecision(3));
      seen.add(r.kind);
      return { type: "scatter", mode: "lines", x: r.step, y: r.loss, name: { best: "best rate", "the base's": "the base's rate", diverged: "first diverged rate" }[r.kind], legendgroup: r.kind, showlegend: first,
        line: { color: kinds[r.kind][0], dash: kinds[r.kind][1], width: 1.8 }, hovertemplate: escaped(r.label) + "<br>" + escaped(r.hp) + " " + rate + ", seed " + r.seed + "<br>step %{x}: %{y:.4g}<extra></extra>" };
    });
    const fine = mine.filter((r) => r.kind !== "diverged").flatMap((r) => r.loss).filter((v) => v !== null), all = mine.flatMap((r) => r.loss).filter((v) => v !== null && v > 0);
    const shown = fine.length ? fine : all, top = Math.max(...shown, 1e-9) * 1.6, bottom = Math.min(...shown.filter((v) => v > 0), top) * 0.8;
    const ticks = [-5, -4, -3, -2, -1, 0, 1, 2, 3].flatMap((p) => [1, 2, 5].map((d) => Number((d * 10 ** p).toPrecision(1))));
    return { data, layout: { height: 400, xaxis: { title: { text: "step" } }, yaxis: { title: { text: "loss (smoothed)" }, type: "log", range: [Math.log10(bottom), Math.log10(top)], tickvals: ticks, ticktext: ticks.map(String) } } };
  }

  if (schemePick) {
    const draw = () => paint(document.getElementById("runs-plot"));
    const sizes = () => fill(sizePick, [...new Set(runs.filter((r) => r.scheme === schemePick.value).map(sizeOf))], sizePick.value);
    fill(schemePick, [...new Set(runs.map((r) => r.scheme))], "depth-mup");
    sizes();
    schemePick.addEventListener("change", () => { sizes(); draw(); });
    sizePick.addEventListener("change", draw);
  }

  const themed = () => { swatches(); repaint(); };
  document.getElementById("theme").addEventListener("click", () => { root.dataset.theme = theme() === "dark" ? "light" : "dark"; themed(); });
  system.addEventListener("change", themed);
  swatches();
  plots().forEach((n) => near.observe(n));
})();
