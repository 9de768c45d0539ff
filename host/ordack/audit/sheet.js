"use strict";
// What pages with tables and plots share. All that came from the network is set as text, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const PAGE = 20;
const number = new Intl.NumberFormat("en");
const $ = id => document.getElementById(id);

function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const plain = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");  // plotly reads markup
const count = value => number.format(value);
const milliseconds = value => value === null ? "" : value === 0 ? "0" : number.format(Number(value.toPrecision(3)));
const moment = value => new Date(value).toISOString().replace("T", " ").replace("Z", "");
const colour = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
const name = text => make("span", {className: "name", title: text}, text);
const short = text => make("span", {className: "name", title: text}, text.length > 12 ? text.slice(0, 9) + "…" : text);

// A table with columns {title, value(row), show(row, value), number}: sorted by a click on a heading, filtered, in pages.
function table(place, caption, rows, columns, {filters = [], search = null, sorted = null, shown = () => {}, note = ""} = {}) {
  let order = rows.map((_, index) => index), begin = 0, by = -1, down = false;
  const heads = columns.map((column, index) => {
    const button = make("button", {type: "button", onclick: () => sort(index)}, column.title);
    return make("th", {scope: "col", className: column.number ? "number" : ""}, button);
  });
  const body = make("tbody");
  const where = make("span", {role: "status"});
  const back = make("button", {type: "button", onclick: () => turn(-PAGE)}, "Previous");
  const next = make("button", {type: "button", onclick: () => turn(PAGE)}, "Next");
  const box = make("input", {type: "search", placeholder: "Part of a name", oninput: select});
  const pick = make("select", {onchange: select}, ...filters.map((filter, index) => make("option", {value: index}, filter.title)));
  const controls = make("div", {className: "controls"});
  if (search) controls.append(make("label", {}, "Search ", box));
  if (filters.length) controls.append(make("label", {}, "Show ", pick));
  controls.append(make("span", {className: "where controls"}, where, back, next));
  const grid = make("table", {}, make("caption", {}, caption), make("thead", {}, make("tr", {}, ...heads)), body);
  const scroll = make("div", {className: "scroll", tabIndex: 0, role: "region", ariaLabel: caption}, grid);
  if (!rows.length) {
    place.replaceChildren(make("p", {className: "quiet"}, caption + ": none."));
    shown([]);
    return {reveal() {}};
  }
  place.replaceChildren(controls, scroll, ...(note ? [make("p", {className: "quiet"}, note)] : []));

  function sort(index) {
    down = by === index ? !down : Boolean(columns[index].number);
    by = index;
    heads.forEach((head, at) => at === by ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort"));
    select();
  }
  function select() {
    const wanted = box.value.trim().toLowerCase(), filter = filters.length ? filters[pick.value] : null;
    order = rows.map((_, index) => index).filter(index =>
      (!filter || !filter.test || filter.test(rows[index])) && (!wanted || search(rows[index]).toLowerCase().includes(wanted)));
    if (by >= 0) {
      const value = columns[by].value, sign = down ? -1 : 1, absent = down ? -Infinity : Infinity;
      const keys = rows.map(row => value(row) ?? absent);
      order.sort((one, other) => (keys[one] < keys[other] ? -sign : keys[one] > keys[other] ? sign : one - other));
    }
    begin = 0;
    draw();
  }
  function turn(by) {
    begin += by;
    draw();
  }
  function draw() {
    const page = order.slice(begin, begin + PAGE);
    body.replaceChildren(...page.map(index => {
      const row = make("tr", {className: rows[index].chosen ? "chosen" : ""});
      for (const column of columns) {
        const value = column.value(rows[index]);
        const shown = column.show ? column.show(rows[index], value) : column.number ? count(value) : value;
        row.append(make("td", {className: column.number ? value ? "number" : "number quiet" : column.className || ""}, shown));
      }
      return row;
    }));
    where.textContent = order.length ? `Rows ${count(begin + 1)} to ${count(begin + page.length)} of ${count(order.length)}` : "No rows";
    back.disabled = begin === 0;
    next.disabled = begin + PAGE >= order.length;
    back.hidden = next.hidden = order.length <= PAGE;
    controls.hidden = rows.length <= PAGE;
    shown(page.map(index => rows[index]));
  }
  if (sorted !== null) sort(sorted);
  else select();
  return {draw};
}

function unpack(columns) {
  const rows = (Object.values(columns)[0] ?? []).map((_, index) => ({index}));
  for (const key in columns) columns[key].forEach((value, index) => { rows[index][key] = value; });
  return rows;
}

// ---- plots

const drawn = [];
function plot(id, description, make_traces, layout, height) {
  const place = $(id);
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", description);
  function draw() {
    const axis = {gridcolor: colour("line"), zerolinecolor: colour("line"), linecolor: colour("line"), automargin: true};
    const wanted = layout();
    Plotly.react(place, make_traces(), {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: colour("text"), family: "inherit", size: 13},
      margin: {l: 60, r: 20, t: 20, b: 45}, hovermode: "closest", legend: {orientation: "h", y: 1.02, yanchor: "bottom"},
      hoverlabel: {align: "left"}, height: height ? height() : 420, ...wanted,
      xaxis: {...axis, ...wanted.xaxis}, yaxis: {...axis, ...wanted.yaxis},
    }, {displaylogo: false, responsive: true, modeBarButtonsToRemove: ["lasso2d", "select2d"]});
  }
  if (!drawn.some(one => one.id === id)) drawn.push({id, draw: () => draw()});
  drawn.find(one => one.id === id).draw = draw;
  draw();
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach(one => one.draw()));
