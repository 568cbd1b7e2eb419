// Keys of a view, as long as it is shown.

import { useLayoutEffect } from "./vendor/preact-htm.js";

/** Calls `onKey` for keys that are neither typed into a field nor the browser's own. */
export function useKeys(onKey) {
  useLayoutEffect(() => {
    const listen = (event) => {
      const isTyped = event.target.matches("input:not([type=checkbox]), textarea, select");
      if (!isTyped && !event.ctrlKey && !event.metaKey && !event.altKey) onKey(event);
    };
    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  });
}
