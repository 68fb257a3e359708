/**
 * The mark of one cell: how often it recompiled, and, when it is asked, why.
 *
 * It is a row at the end of the cell's own element and so goes where the cell goes: out of view in a windowed notebook,
 * to another place, away. Lab keeps the rest of the element in order without regard to what comes last.
 */
import type { CodeCell } from '@jupyterlab/cells';
import type { IDisposable } from '@lumino/disposable';

import { html } from './dom';
import { lineOf, recompilesIn, timesOf, type IReason, type IRecompiles } from './recompiles';
import { plural } from './units';

/** Outputs change up to ten times a second while work goes on. */
const EVERY = 150;
const MOST_LINES = 5;

export class CellMark implements IDisposable {
  private node: HTMLElement | null = null;
  private shown = '';
  private timer = 0;
  private disposed = false;

  constructor(private readonly cell: CodeCell) {
    cell.model.outputs.changed.connect(this.changed, this);
    cell.disposed.connect(this.dispose, this);
    this.draw();
  }

  get isDisposed(): boolean {
    return this.disposed;
  }

  dispose(): void {
    if (this.disposed) {
      return;
    }
    this.disposed = true;
    window.clearTimeout(this.timer);
    this.cell.disposed.disconnect(this.dispose, this);
    this.cell.model?.outputs?.changed.disconnect(this.changed, this); // a cell that is disposed has no model
    this.node?.remove();
    this.node = null;
  }

  private changed(): void {
    if (this.cell.model.outputs.length === 0) {
      this.draw();
    } else if (this.timer === 0) {
      this.timer = window.setTimeout(() => {
        this.draw();
      }, EVERY);
    }
  }

  private draw(): void {
    window.clearTimeout(this.timer);
    this.timer = 0;
    const { outputs } = this.cell.model;
    const found = recompilesIn(Array.from({ length: outputs.length }, (_, index) => outputs.get(index)));
    const shown = found === null ? '' : JSON.stringify(found);
    if (shown === this.shown) {
      return; // a mark that is open stays so
    }
    this.shown = shown;
    const open = this.node?.querySelector('button')?.getAttribute('aria-expanded') === 'true';
    this.node?.remove();
    this.node = found === null ? null : markOf(found, open);
    if (this.node !== null) {
      this.cell.node.append(this.node);
    }
  }
}

/** A mark's element. */
export function markOf(found: IRecompiles, open = false): HTMLElement {
  const lines = found.reasons.slice(0, MOST_LINES).map(lineOf);
  const more = found.reasons.length - lines.length + found.more;
  const button = html(
    'button',
    {
      type: 'button',
      class: 'nbcompile-Mark-button',
      'aria-expanded': String(open),
      'data-lm-suppress-shortcuts': 'true', // Enter and Space press it, and are no commands of the notebook
      title: [...lines, more > 0 ? `and ${more} more` : ''].filter(line => line).join('\n')
    },
    html('span', { 'aria-hidden': 'true' }, '↻ '),
    timesOf(found)
  );
  button.addEventListener('click', () => {
    button.setAttribute('aria-expanded', String(button.getAttribute('aria-expanded') !== 'true'));
  });
  const list = html('ul', { class: 'nbcompile-Mark-list' }, ...found.reasons.map(itemOf));
  if (found.more > 0) {
    list.append(html('li', {}, `and ${plural(found.more, 'other reason')}`));
  }
  return html('div', { class: 'nbcompile-Mark' }, button, list);
}

function itemOf(reason: IReason): HTMLElement {
  const part = (name: string, text: string): HTMLElement | null =>
    text ? html('div', { class: `nbcompile-Mark-${name}` }, text) : null;
  const times = reason.times > 1 ? `${reason.times} times, ` : '';
  return html(
    'li',
    {},
    part('where', `${reason.region} (${times}${reason.blocks})`),
    part('reason', reason.reason),
    part('change', reason.change),
    part('remedy', reason.remedy),
    part('caller', reason.caller && `called in ${reason.caller}`)
  );
}
