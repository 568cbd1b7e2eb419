// Pictures of a rollout. On the screenshot that a call returned, the places where the call acted are marked.

import { html, useState } from "./vendor/preact-htm.js";

/** The places on the screen that a call names, in pixels of the screenshot: `x` and `y`, `coordinate`, or a path. */
export function placesOf(asked) {
  const given = typeof asked === "string" ? parsed(asked) : asked;
  const actions = given?.actions ?? [given?.action && typeof given.action === "object" ? given.action : given];
  return (Array.isArray(actions) ? actions : [])
    .flatMap((action) => [action, action?.start_coordinate, action?.coordinate, ...(Array.isArray(action?.path) ? action.path : [])])
    .map((place) => (Array.isArray(place) ? place : [place?.x, place?.y]))
    .filter((place) => place.length === 2 && place.every((each) => Number.isFinite(each) && each >= 0));
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** A picture from data of the message. Places outside of it are not marked: they are in another scale. */
export function Picture({ source, places = [] }) {
  const [size, setSize] = useState(null);
  const note = ({ target }) => setSize([target.naturalWidth, target.naturalHeight]);
  const marks = size ? places.filter(([x, y]) => x <= size[0] && y <= size[1]) : [];
  return html`<span class="framed"><img class="picture" src=${source} alt="image in the message" onLoad=${places.length ? note : null} />
    ${marks.map(([x, y]) => html`<i class="pointed" role="img" aria-label=${`the call acted at ${x}, ${y}`} title=${`${x}, ${y}`}
      style=${{ left: `${(100 * x) / size[0]}%`, top: `${(100 * y) / size[1]}%` }}></i>`)}</span>`;
}
