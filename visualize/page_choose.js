// Lists of which one item is chosen, by the patterns of ARIA: one stop of the Tab key each, arrow keys inside.

/** Move the focus and the choice among some elements with the arrow keys. */
function rove(container, role, choose) {
  container.addEventListener("keydown", (event) => {
    const items = [...container.querySelectorAll(`[role=${role}]`)];
    const at = items.indexOf(document.activeElement);
    const to = {
      ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: items.length - 1,
    }[event.key];
    if (at < 0 || to === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const index = (to + items.length) % items.length;
    choose(index);
    // A choice may build the list anew.
    container.querySelectorAll(`[role=${role}]`)[index].focus();
  });
  container.addEventListener("click", (event) => {
    const item = event.target.closest(`[role=${role}]`);
    if (item) choose([...container.querySelectorAll(`[role=${role}]`)].indexOf(item));
  });
}

/** Mark one element as chosen: it alone is a stop of the Tab key. */
function mark(container, role, attribute, index) {
  container.querySelectorAll(`[role=${role}]`).forEach((item, at) => {
    item.setAttribute(attribute, String(at === index));
    item.tabIndex = at === index ? 0 : -1;
  });
}

/** Fill a list, and leave the focus where it was. */
function fill(container, items, chosen) {
  const held = container.contains(document.activeElement);
  container.replaceChildren(...items);
  mark(container, "radio", "aria-checked", chosen);
  const item = container.children[chosen];
  if (held) item?.focus();
  // Scrolls the list alone, never the page.
  if (item) {
    const outer = container.getBoundingClientRect(), inner = item.getBoundingClientRect();
    if (inner.top < outer.top || inner.bottom > outer.bottom) container.scrollTop += inner.top - outer.top - 40;
    if (inner.left < outer.left || inner.right > outer.right) container.scrollLeft += inner.left - outer.left - 40;
  }
}

/** Make an element: its attributes, then its children, texts or elements. */
function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
