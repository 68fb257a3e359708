/** Elements whose text is set as text. */

/** An element with a class and text or children. */
export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = '',
  ...children: (string | Node)[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  if (className) {
    made.className = className;
  }
  made.append(...children);
  return made;
}

/** Set text if it is another: a node that is written anew loses a reader's selection. */
export function setText(node: HTMLElement, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/** A button with a label, in Lab's own style. */
export function button(label: string, pressed: () => void, kind = ''): HTMLButtonElement {
  const made = element('button', `jp-mod-styled nbcompile-button ${kind}`.trim(), label);
  made.type = 'button';
  made.addEventListener('click', pressed);
  return made;
}
