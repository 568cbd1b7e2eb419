// A plot over values, in the colours of the page.

import { html, useEffect, useRef } from "./vendor/preact-htm.js";

/** A plot that `make` describes for the data: options and series. */
export function Plot({ make, data }) {
  const place = useRef(null);
  useEffect(() => {
    if (!data.length || !globalThis.uPlot) return undefined;
    const { options, series } = make(data);
    const plot = new globalThis.uPlot({ width: place.current.clientWidth || 420, height: 220, ...options }, series, place.current);
    return () => plot.destroy();
  }, [data]);
  return data.length ? html`<div class="plot" ref=${place}></div>` : html`<p class="note">No values.</p>`;
}

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function axes() {
  const style = { stroke: colour("--quiet"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
  return [{ ...style }, { ...style }];
}
