/** Parts of the side bar's page that several of its files make. */
import { html } from './dom';

/** Set text if it is another: a node that is written anew loses a reader's selection. */
export function setText(node: HTMLElement, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/** A button with a label, in Lab's own style. */
export function button(label: string, pressed: () => void, kind = ''): HTMLButtonElement {
  const made = html('button', { type: 'button', class: `jp-mod-styled nbcompile-button ${kind}`.trim() }, label);
  made.addEventListener('click', pressed);
  return made;
}
