/**
 * The comparison that stands above a report on the page. It is drawn anew, in place, whenever either report changes.
 */
import { type IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';

import { html, morph } from './dom';
import { differences } from './pair';
import { drawPair, FIRST_PAIR_ROWS, MORE_PAIR_ROWS, type ISide, type PairRows } from './pairdraw';
import type { Reading } from './read';
import type { IReport } from './report';
import { clean } from './units';
import type { ReportView } from './view';
import { head } from './words';

/** Where another report comes from. */
export interface ISource {
  /** Where it is, in the reader's words. */
  label: string;
  read: () => Reading;
  /** What tells that it may have changed, if it can. */
  changes: readonly ISignal<unknown, unknown>[];
}

/** The comparison above a view's report; opened again it shows the other one in its place. */
export class PairPane implements IDisposable {
  /** Lay another report beside the view's. `label` says where the view's own is. */
  static open(view: ReportView, label: string, other: ISource): PairPane {
    panes.get(view)?.dispose();
    const pane = new PairPane(view, label, other);
    panes.set(view, pane);
    view.tools.after(pane.node);
    pane.node.scrollIntoView({ block: 'nearest' });
    return pane;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    Signal.clearData(this);
    this.node.removeEventListener('click', this);
    this.node.remove();
    if (panes.get(this.view) === this) {
      panes.delete(this.view);
    }
  }

  handleEvent(event: Event): void {
    const button = event.target instanceof Element ? event.target.closest('button') : null;
    const part = button?.getAttribute('data-of');
    if (button?.getAttribute('data-do') === 'close') {
      this.dispose();
      this.view.tools.querySelector('button')?.focus(); // the keyboard stays where the comparison was
    } else if (part === 'strategies' || part === 'times' || part === 'regions') {
      this.rows = { ...this.rows, [part]: this.rows[part] + MORE_PAIR_ROWS };
      this.draw();
    }
  }

  readonly node = html('section', { class: 'nbcompile-Pair', 'aria-label': 'Two reports side by side' });

  private constructor(
    private readonly view: ReportView,
    private readonly label: string,
    private readonly other: ISource
  ) {
    this.node.addEventListener('click', this);
    view.changed.connect(this.draw, this);
    view.disposed.connect(this.dispose, this);
    for (const change of other.changes) {
      change.connect(this.readOther, this);
    }
    this.readOther();
  }

  private readOther(): void {
    const { report } = this.other.read();
    this.gone = report === undefined;
    this.theirs = report ?? this.theirs; // what is gone stays to be read, and is told to be gone
    this.draw();
  }

  private draw(): void {
    this.ours = this.view.report ?? this.ours;
    if (this.ours === null || this.theirs === null) {
      return;
    }
    const sides: [ISide, ISide] = [
      sideOf(this.label, this.ours, this.view.report === null),
      sideOf(this.other.label, this.theirs, this.gone)
    ];
    morph(this.node, drawPair(sides, differences(this.ours, this.theirs), this.rows));
  }

  private ours: IReport | null = null;
  private theirs: IReport | null = null;
  private gone = false;
  private rows: PairRows = FIRST_PAIR_ROWS;
  private _isDisposed = false;
}

function sideOf(label: string, report: IReport, gone: boolean): ISide {
  const place = clean(label, 160);
  return {
    label: gone ? `${place} (as it was; it is no longer there)` : place,
    head: head(report),
    created: clean(report.created, 60)
  };
}

const panes = new WeakMap<ReportView, PairPane>();
