/**
 * Elements by calls, never by markup: whatever a report holds is set as text or as an attribute's value.
 */
const SVG = 'http://www.w3.org/2000/svg';

export type Child = Node | string | null;
export type Attributes = Readonly<Record<string, string | number | null>>;

/** An HTML element; attributes that are null, and children that are null or empty text, are left out. */
export function html<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  return filled(document.createElement(tag), attributes, children);
}

/** An element of a drawing. */
export function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Attributes = {},
  ...children: Child[]
): SVGElementTagNameMap[K] {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled<E extends Element>(element: E, attributes: Attributes, children: Child[]): E {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null) {
      element.setAttribute(name, String(value));
    }
  }
  element.append(...children.filter((child): child is Node | string => child !== null && child !== ''));
  return element;
}

/**
 * Make an element's content equal to that of another one, and leave alone what is equal already: an output that changes
 * ten times a second keeps the reader's scroll position, focus, selection and opened details.
 */
export function morph(into: Element, from: Element): void {
  let place = into.firstChild;
  for (const node of Array.from(from.childNodes)) {
    let kept: Node | null = place;
    while (kept !== null && !sameKind(kept, node)) {
      kept = kept.nextSibling;
    }
    if (kept === null) {
      into.insertBefore(node, place); // a part that was not there: those behind it stay as they are
      continue;
    }
    while (place !== null && place !== kept) {
      const gone: ChildNode = place;
      place = gone.nextSibling;
      gone.remove();
    }
    place = kept.nextSibling as ChildNode | null;
    if (kept instanceof Element && node instanceof Element) {
      morphAttributes(kept, node);
      if (!node.hasAttribute('data-kept')) {
        morph(kept, node); // what is kept is filled by the reader's pointer
      }
    } else if (kept.nodeValue !== node.nodeValue) {
      kept.nodeValue = node.nodeValue;
    }
  }
  while (place !== null) {
    const gone: ChildNode = place;
    place = gone.nextSibling;
    gone.remove();
  }
}

function sameKind(a: Node, b: Node): boolean {
  if (a instanceof Element && b instanceof Element) {
    return a.tagName === b.tagName && a.getAttribute('data-part') === b.getAttribute('data-part');
  }
  return a.nodeType === Node.TEXT_NODE && b.nodeType === Node.TEXT_NODE;
}

function morphAttributes(into: Element, from: Element): void {
  for (const { name } of Array.from(into.attributes)) {
    if (name !== 'open' && !from.hasAttribute(name)) {
      into.removeAttribute(name); // `open` is the reader's
    }
  }
  for (const { name, value } of Array.from(from.attributes)) {
    if (into.getAttribute(name) !== value) {
      into.setAttribute(name, value);
    }
  }
}
