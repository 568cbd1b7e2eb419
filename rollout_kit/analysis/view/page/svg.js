// Plots as SVG files, for a paper or a slide: on white, with axes, units and a legend, and nothing of the page.

const WIDTH = 640, HEIGHT = 400;
const FRAME = { left: 64, right: 16, top: 40, bottom: 56 };
const COLOURS = ["#2359b8", "#b4530a", "#17692f", "#8a2be2", "#a3232b", "#00757f", "#7a5200", "#596273"];
const NUM_TICKS = 5;

/** `x` and `y` name the axes; one of `lines` (a list of [x, y] for each of `names`), `points` ([x, y, series, size])
 * and `bars` (label and the sizes of each of `names`) is drawn. `isTime`: x counts seconds since 1970. */
export function drawSvg({ title, x, y, names, lines, points, bars, isTime }) {
  const body = bars ? drawBars(bars) : drawValues({ lines, points, isTime });
  const legend = names.length > 1 ? names.map(drawKey) : [];
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="sans-serif" font-size="12">`,
    `<title>${escape(title)}</title>`,
    '<rect width="100%" height="100%" fill="#fff"/>',
    text(WIDTH / 2, 18, title, 'text-anchor="middle" font-weight="bold" font-size="14"'),
    ...body,
    text((FRAME.left + WIDTH - FRAME.right) / 2, HEIGHT - 10, x, 'text-anchor="middle"'),
    text(16, (FRAME.top + HEIGHT - FRAME.bottom) / 2, y, `text-anchor="middle" transform="rotate(-90 16 ${(FRAME.top + HEIGHT - FRAME.bottom) / 2})"`),
    ...legend,
    "</svg>",
    "",
  ].join("\n");
}

/** Hands the reader a file. */
export function save(name, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: "image/svg+xml" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function drawValues({ lines = [], points = [], isTime }) {
  const all = [...lines.flat(), ...points];
  if (!all.length) return [text(WIDTH / 2, HEIGHT / 2, "No values.", 'text-anchor="middle"')];
  const across = scale(all.map((each) => each[0]), FRAME.left, WIDTH - FRAME.right);
  const up = scale(all.map((each) => each[1]), HEIGHT - FRAME.bottom, FRAME.top);
  const paths = lines.map((each, at) => {
    const way = each.map(([one, other], number) => `${number ? "L" : "M"}${round(across.place(one))} ${round(up.place(other))}`).join("");
    return `<path d="${way}" fill="none" stroke="${COLOURS[at]}" stroke-width="2"/>`;
  });
  const circles = points.map(
    ([one, other, at, size]) =>
      `<circle cx="${round(across.place(one))}" cy="${round(up.place(other))}" r="${Math.min(9, 3 + Math.log2(size || 1)).toFixed(1)}" fill="${COLOURS[at]}" fill-opacity="0.7"/>`,
  );
  const spell = (value) => (isTime ? new Date(value * 1000).toISOString().slice(11, 19) : short(value));
  return [...gridUp(up), ...across.ticks.map((value) => text(across.place(value), HEIGHT - FRAME.bottom + 16, spell(value), 'text-anchor="middle"')), ...paths, ...circles];
}

function drawBars(bars) {
  const most = Math.max(1, ...bars.flatMap((bar) => bar.sizes));
  const up = scale([0, most], HEIGHT - FRAME.bottom, FRAME.top);
  const room = (WIDTH - FRAME.left - FRAME.right) / Math.max(1, bars.length);
  const every = Math.ceil(bars.length / 12);
  const drawn = bars.flatMap((bar, number) => {
    const left = FRAME.left + room * number, width = (room * 0.8) / bar.sizes.length;
    const columns = bar.sizes.map(
      (size, at) =>
        `<rect x="${round(left + room * 0.1 + width * at)}" y="${round(up.place(size))}" width="${round(width)}" height="${round(up.place(0) - up.place(size))}" fill="${COLOURS[at]}"/>`,
    );
    const label = number % every ? [] : [text(left + room / 2, HEIGHT - FRAME.bottom + 16, String(bar.label).slice(0, 14), 'text-anchor="middle" font-size="10"')];
    return [...columns, ...label];
  });
  return [...gridUp(up), ...drawn];
}

function gridUp({ ticks, place }) {
  return ticks.flatMap((value) => [
    `<path d="M${FRAME.left} ${round(place(value))}H${WIDTH - FRAME.right}" stroke="#d7dbe2"/>`,
    text(FRAME.left - 8, place(value) + 4, short(value), 'text-anchor="end"'),
  ]);
}

/** Round ticks over the values, and where a value is drawn. */
function scale(values, from, to) {
  const low = values.reduce((one, other) => Math.min(one, other)), high = values.reduce((one, other) => Math.max(one, other));
  const rough = (high - low || Math.abs(high) || 1) / NUM_TICKS;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const first = Math.floor(low / step) * step, last = Math.max(first + step, Math.ceil(high / step) * step);
  const number = Math.round((last - first) / step);
  const ticks = Array.from({ length: number + 1 }, (_, at) => first + at * step);
  return { ticks, place: (value) => from + ((value - first) / (last - first)) * (to - from) };
}

function drawKey(name, at) {
  const place = FRAME.left + 8 + (at % 3) * 190, line = FRAME.top - 8 + Math.floor(at / 3) * 16;
  return `<rect x="${place}" y="${line - 9}" width="10" height="10" fill="${COLOURS[at]}"/>${text(place + 14, line, name.slice(0, 28), "")}`;
}

function text(x, y, content, more) {
  return `<text x="${round(x)}" y="${round(y)}" ${more}>${escape(String(content))}</text>`;
}

function short(value) {
  return String(Number(value.toPrecision(4)));
}

function round(value) {
  return value.toFixed(1);
}

function escape(content) {
  return content.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}
