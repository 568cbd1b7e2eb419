// What the theme lacks for readers without a mouse: a name for the search, and tables that scroll by keys.
document$.subscribe(() => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search")
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap, pre > code")) box.setAttribute("tabindex", "0")
})
