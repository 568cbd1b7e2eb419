// The row of the table that the reader was at, so that the table opens there again.

let remembered = { key: "", selected: 0 };

export function rememberRow(query, selected) {
  remembered = { key: JSON.stringify(query), selected };
}

export function rememberedRow(query) {
  return remembered.key === JSON.stringify(query) ? remembered.selected : 0;
}
