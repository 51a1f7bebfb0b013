(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 640px)");
  const colours = (printing) => (dark.matches && !printing
    ? { ink: "#e6e9ec", line: "#333b44", paper: "#14181c" }
    : { ink: "#1c2127", line: "#dde2e7", paper: "#ffffff" });
  const themed = (chart, printing) => {
    const c = colours(printing);
    const axis = (given) => ({ gridcolor: c.line, zerolinecolor: c.line, linecolor: c.line, automargin: true, ...given });
    const shape = chart.layout;
    const menus = (shape.updatemenus || []).map((menu) => ({
      ...menu, bgcolor: c.paper, bordercolor: c.line, font: { color: c.ink }, active: menu.active || 0,
    }));
    return {
      ...shape, paper_bgcolor: c.paper, plot_bgcolor: c.paper, hovermode: "closest", updatemenus: menus,
      font: { color: c.ink, family: "system-ui, sans-serif", size: 13 },
      margin: { l: 60, r: 16, t: menus.length ? 64 : 16, b: 52 },
      legend: { ...shape.legend, ...(narrow.matches ? { orientation: "h", yanchor: "top", y: -0.28 } : { x: 1.02, y: 1 }) },
      xaxis: axis(shape.xaxis), yaxis: axis(shape.yaxis),
    };
  };
  const options = { responsive: true, displayModeBar: false };
  const draw = (printing) => charts.forEach((chart) => {
    Plotly.react(chart.name, chart.data, themed(chart, printing), options);
  });
  draw(false);
  dark.addEventListener("change", () => draw(false));
  narrow.addEventListener("change", () => draw(false));
  window.addEventListener("beforeprint", () => draw(true));
  window.addEventListener("afterprint", () => draw(false));
})();
