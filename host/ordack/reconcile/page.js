// Tables and plots of a reconciliation, behind sheet.js.

const found = unpack(data.findings), sensors = unpack(data.sensors);
const seconds = value => value === null ? "" : number.format(Number(value.toPrecision(4)));

table($("findings-table"), "Messages", found, [
  {title: "Finding", value: one => one.kind, show: (one, kind) => make("span", {className: "badge b" + (one.violation ? 0 : 1), title: one.meaning}, kind.replace(/_/g, " "))},
  {title: "Source", value: one => one.source, show: (_, text) => short(text)},
  {title: "Message", value: one => one.message, show: (_, value) => String(value), number: true},
  {title: "Queue", value: one => one.queue, show: (_, text) => name(text)},
  {title: "Packets", value: one => one.packets.length, show: one => make("ol", {className: "packets"}, ...one.packets.map(text => make("li", {}, text)))},
], {search: one => `${one.source} ${one.message} ${one.queue} ${one.kind}`,
    filters: [{title: "all"}, ...[...new Set(found.map(one => one.kind))].map(kind => ({title: kind.replace(/_/g, " "), test: one => one.kind === kind}))],
    note: found.length < data.finding_count ? `The first ${count(found.length)} of ${count(data.finding_count)}.` : ""});

table($("sensors-table"), "Sensors", sensors, [
  {title: "Source", value: one => one.source, show: (_, text) => short(text)}, {title: "Queue", value: one => one.queue, show: (_, text) => name(text)},
  ...[["Rows", "rows"], ["Too many", "duplicates"], ["Gaps", "gaps"], ["Lacking", "lacking"]].map(([title, key]) => ({title, value: one => one[key], number: true})),
  ...["p50", "p90", "p99", "max"].map(rank => ({title: rank + " s", value: one => one[rank], show: (_, value) => seconds(value), number: true})),
  {title: "First", value: one => one.first, show: (_, value) => value === null ? "" : moment(value), className: "nowrap"},
  {title: "Last", value: one => one.last, show: (_, value) => value === null ? "" : moment(value), className: "nowrap"},
], {search: one => `${one.source} ${one.queue}`, filters: [{title: "all"}, {title: "with gaps", test: one => one.gaps}, {title: "with too many", test: one => one.duplicates}]});

const slowest = sensors.filter(one => one.p50 !== null).sort((one, other) => other.p99 - one.p99).slice(0, 30);
plot("latency-plot", "Latency of the slowest sources; the table above has the numbers", () => [["p50", "first"], ["p90", "resend"], ["p99", "negative"]].map(([rank, key]) => ({
  type: "scatter", mode: "markers", name: rank, x: slowest.map(one => one[rank]), y: slowest.map(one => plain(`${one.source.slice(0, 12)} ${one.queue}`)),
  marker: {color: colour(key), size: 10}, hovertemplate: `${rank} %{x} s<extra>%{y}</extra>`,
})), () => ({xaxis: {title: {text: "seconds"}}, yaxis: {type: "category", autorange: "reversed"}}), () => 160 + 24 * slowest.length);
