// Elements without markup: text is always text.

/** An element with attributes and children. `on*` attributes are listeners; false and null attributes are left out. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** A line icon, by the path of its strokes. */
export function icon(path) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(space, "path");
  line.setAttribute("d", path);
  svg.append(line);
  return svg;
}

/** Puts a text on the clipboard, and says so on the button for a moment. */
export async function copy(text, button) {
  const before = button.getAttribute("aria-label");
  try {
    await navigator.clipboard.writeText(text);
    button.setAttribute("aria-label", "Copied");
  } catch {
    button.setAttribute("aria-label", "The browser does not let this page copy");
  }
  button.classList.add("done");
  setTimeout(() => {
    button.classList.remove("done");
    button.setAttribute("aria-label", before);
  }, 1200);
}

/** A value of the style sheet, such as --accent. */
export const styled = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
