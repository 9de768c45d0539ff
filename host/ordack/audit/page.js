"use strict";
// Tables of an audit's report. All that came from the network is set as text, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const PAGE = 20;
const number = new Intl.NumberFormat("en");
const $ = id => document.getElementById(id);

function make(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const count = value => number.format(value);
const milliseconds = value => value === null ? "" : value === 0 ? "0" : number.format(Number(value.toPrecision(3)));
const moment = value => new Date(value).toISOString().replace("T", " ").replace("Z", "");
const name = text => make("span", {className: "name", title: text}, text);
const short = text => make("span", {className: "name", title: text}, text.length > 12 ? text.slice(0, 9) + "…" : text);

// A table with columns {title, value(row), show(row, value), number}: sorted by a click on a heading, filtered, in pages.
function table(place, caption, rows, columns, {filters = [], search = null, note = ""} = {}) {
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
    return;
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
      const row = make("tr", {});
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
  }
  select();
}

function unpack(columns) {
  const rows = (Object.values(columns)[0] ?? []).map((_, index) => ({index}));
  for (const key in columns) columns[key].forEach((value, index) => { rows[index][key] = value; });
  return rows;
}

// ---- what there is

const streams = unpack(data.streams), senders = unpack(data.senders), connections = unpack(data.connections);
for (const stream of streams) stream.queue = data.queues[stream.queue];
for (const one of [...streams, ...senders]) one.source = data.managers[one.source];
const BADGES = ["violation", "not known", "unsettled", "clean"];
const badge = stream => make("span", {className: "badge b" + stream.verdict}, BADGES[stream.verdict]);
const label = stream => `${stream.source} → ${stream.queue}` + (stream.hops ? ` (${stream.hops} hops)` : "");

// ---- violations

function packets(finding) {
  return make("ol", {className: "packets"}, ...finding.packets.map(([file, frame, time]) =>
    make("li", {}, make("span", {className: "name", title: data.paths[file] ?? ""}, (data.paths[file] ?? "?").split("/").pop()), ` frame ${frame}, `, make("span", {className: "nowrap"}, time))));
}

function findings(place, caption, rows, total) {
  const about = finding => finding.stream === null ? finding.connection : label(streams[finding.stream]);
  const show = finding => finding.stream === null ? name(about(finding)) :
    make("span", {}, short(streams[finding.stream].source), " → ", name(streams[finding.stream].queue));
  table($(place), caption, rows, [
    {title: "Kind", value: finding => finding.kind, show: (finding, kind) => make("strong", {title: data.kinds[kind] ?? ""}, kind)},
    {title: "Stream or connection", value: about, show},
    {title: "Sequence", value: finding => finding.sequence, show: (_, text) => name(text)},
    {title: "Number", value: finding => finding.number || null, show: (_, value) => value === null ? "" : count(value), number: true},
    {title: "What", className: "what", value: finding => finding.text, show: finding => make("span", {}, finding.text, finding.rule ? ` (${finding.rule})` : "")},
    {title: "Packets", value: finding => finding.packets.length, show: packets},
  ], {search: finding => about(finding) + finding.kind + finding.text,
      filters: [{title: "all kinds"}, ...[...new Set(rows.map(one => one.kind))].map(kind => ({title: kind, test: one => one.kind === kind}))],
      note: rows.length < total ? `The first ${count(rows.length)} of ${count(total)}.` : ""});
}

findings("violations-table", "Violations", data.violations, data.violation_count);
findings("unknowns-table", "Not known", data.unknowns, data.unknown_count);

// ---- the fleet

table($("fleet-table"), "Streams", streams, [
  {title: "Verdict", value: stream => stream.verdict, show: badge},
  {title: "Source", value: stream => stream.source, show: (_, text) => short(text)},
  {title: "Destination queue", value: stream => stream.queue, show: (_, text) => name(text)},
  ...[["Violations", "violations"], ["Not known", "unknowns"], ["Messages", "messages"], ["With order ack.", "order_acked"], ["With final ack.", "final_acked"], ["Unsettled", "unsettled"], ["Resends", "resends"],
      ["Not accepted", "rejects"], ["Holes", "holes"]].map(([title, key]) => ({title, value: stream => stream[key], number: true})),
  ...[["Order p50 ms", "order_p50"], ["Order p99 ms", "order_p99"], ["Final p99 ms", "final_p99"]].map(([title, key]) =>
    ({title, value: stream => stream[key], show: (_, value) => milliseconds(value), number: true})),
], {search: label, filters: [
  {title: "all"}, {title: "with violations", test: stream => stream.violations}, {title: "with something not known", test: stream => stream.unknowns},
  {title: "with unsettled messages", test: stream => stream.unsettled}, {title: "with resends", test: stream => stream.resends},
]});

table($("senders-table"), "Senders", senders, [
  {title: "Source", value: sender => sender.source, show: (_, text) => name(text)},
  ...[["Streams", "streams"], ["Messages", "messages"], ["Resends", "resends"], ["Not accepted", "rejects"], ["Unsettled", "unsettled"], ["Violations", "violations"]]
    .map(([title, key]) => ({title, value: sender => sender[key], number: true})),
  ...["session", "order", "final"].flatMap(which => ["p50", "p99", "max"].map(rank => (
    {title: `${which} ${rank} ms`, value: sender => sender[`${which}_${rank}`], show: (_, value) => milliseconds(value), number: true}))),
], {search: sender => sender.source});

table($("connections-table"), "Connections", connections, [
  {title: "From", value: one => one.ends[0], show: (_, text) => name(text)}, {title: "To", value: one => one.ends[1], show: (_, text) => name(text)},
  {title: "Begin", value: one => one.first, show: (one, value) => moment(value) + (one.syn ? "" : " (older)"), className: "nowrap"},
  {title: "Seconds", value: one => one.last - one.first, show: (_, value) => number.format(value / 1000), number: true},
  ...[["Packets", "packets"], ["Messages", "messages"], ["Holes", "holes"], ["Malformed", "malformed"]].map(([title, key]) => ({title, value: one => one[key], number: true})),
  {title: "End", value: one => one.end},
], {search: one => one.ends.join(" ") + " " + one.managers.join(" "),
    filters: [{title: "all"}, {title: "with holes", test: one => one.holes}, {title: "older than the capture", test: one => !one.syn}, {title: "with malformed packets", test: one => one.malformed}],
    note: connections.length < data.connection_count ? `Those with most trouble of ${count(data.connection_count)}.` : ""});
