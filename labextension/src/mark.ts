/**
 * The mark of one cell: how often it recompiled, and, when it is asked, why.
 *
 * It is the last widget of the cell's own layout and so goes where the cell goes: out of view in a windowed notebook, to
 * another place, away.
 */
import type { CodeCell } from '@jupyterlab/cells';
import type { IDisposable } from '@lumino/disposable';
import { Widget, type PanelLayout } from '@lumino/widgets';

import { html } from './dom';
import { lineOf, recompilesIn, timesOf, type IReason, type IRecompiles } from './recompiles';
import { plural } from './units';

/** Outputs change up to ten times a second while work goes on. */
const EVERY = 150;
const MOST_LINES = 5;

export class CellMark implements IDisposable {
  private widget: Widget | null = null;
  private shown = '';
  private timer = 0;
  private disposed = false;

  constructor(private readonly cell: CodeCell) {
    cell.model.outputs.changed.connect(this.changed, this);
    cell.disposed.connect(this.dispose, this);
    if (cell.isPlaceholder()) {
      // a cell that was never in view has no widgets yet
      void cell.ready.then(() => {
        this.draw();
      });
    } else {
      this.draw();
    }
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
    this.widget?.dispose();
    this.widget = null;
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
    if (this.disposed || this.cell.isPlaceholder()) {
      return;
    }
    const { outputs } = this.cell.model;
    const found = recompilesIn(Array.from({ length: outputs.length }, (_, index) => outputs.get(index)));
    const shown = found === null ? '' : JSON.stringify(found);
    if (shown === this.shown) {
      return; // a mark that is open stays so
    }
    this.shown = shown;
    const open = this.widget?.node.querySelector('button')?.getAttribute('aria-expanded') === 'true';
    this.widget?.dispose();
    this.widget = found === null ? null : new Widget({ node: markOf(found, open) });
    if (this.widget !== null) {
      (this.cell.layout as PanelLayout).addWidget(this.widget);
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
