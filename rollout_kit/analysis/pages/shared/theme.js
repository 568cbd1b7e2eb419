// Light or dark: as the system has it, or as the reader chose last.

export function switchTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  try {
    localStorage.setItem("rollout-theme", root.dataset.theme);
  } catch {
    // a page from a file may have no storage
  }
}

try {
  const theme = localStorage.getItem("rollout-theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch {
  // a page from a file may have no storage
}
