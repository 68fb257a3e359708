/**
 * One report on the page.
 */
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { type ISignal, Signal } from '@lumino/signaling';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { morph } from './dom';
import { drawProblem, drawReport, FIRST_ROWS, MORE_ROWS, type IChoice } from './draw';
import { readReport } from './read';
import { nextOrder, regionsOf, type IRegion } from './regions';
import type { IReport } from './report';

export class ReportView extends Widget implements IRenderMime.IRenderer {
  constructor(private readonly mimeType: string) {
    super();
    this.addClass('nbcompile-Report');
    this.tools.className = 'nbcompile-tools';
    this.body.className = 'nbcompile-body';
    this.node.append(this.tools, this.body);
  }

  /** Every view that is on the page now, in the order in which they came. */
  static get shown(): ReadonlySet<ReportView> {
    return shown;
  }

  /** Emitted after a view has come to the page or has left it. */
  static get shownChanged(): ISignal<object, void> {
    return shownChanged;
  }

  /** Where others may put buttons that act on this report. What is drawn never touches it. */
  readonly tools = document.createElement('div');

  /** What is shown now; null while there is nothing, or nothing that can be read. */
  get report(): IReport | null {
    return this._report;
  }

  /** Emitted after another report, or another state of it, was drawn. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Draw what an output holds now. Called again, on the same widget, whenever the output changes. */
  renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const reading = readReport(model.data[this.mimeType]);
    this._report = reading.report ?? null;
    this.regions = reading.report === undefined ? [] : regionsOf(reading.report);
    if (reading.problem !== undefined) {
      morph(this.body, drawProblem(reading.problem));
    }
    this.draw();
    this._changed.emit();
    return Promise.resolve();
  }

  /** The node's own events: what is drawn has none, so that it can be exchanged at any time. */
  handleEvent(event: Event): void {
    const target = event.target instanceof Element ? event.target : null;
    switch (event.type) {
      case 'click':
        this.press(target?.closest('button') ?? null);
        break;
      case 'focusin':
      case 'pointerover':
        this.tell(target?.closest('[data-about]') ?? null);
        break;
    }
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    for (const type of EVENTS) {
      this.body.addEventListener(type, this);
    }
    shown.add(this);
    shownChanged.emit();
  }

  protected override onBeforeDetach(message: Message): void {
    shown.delete(this);
    shownChanged.emit();
    for (const type of EVENTS) {
      this.body.removeEventListener(type, this);
    }
    super.onBeforeDetach(message);
  }

  private draw(): void {
    if (this._report !== null) {
      morph(this.body, drawReport(this._report, this.regions, this.choice));
    }
  }

  private press(button: Element | null): void {
    const column = button?.getAttribute('data-sort');
    if (column) {
      this.choice = { order: nextOrder(this.choice.order, Number(column)), rows: FIRST_ROWS };
      this.draw();
    } else if (button?.hasAttribute('data-more')) {
      this.choice = { ...this.choice, rows: this.choice.rows + MORE_ROWS };
      this.draw();
    }
  }

  /** Tell a bar's figures below its chart. */
  private tell(bar: Element | null): void {
    const readout = bar?.closest('figure')?.querySelector('.nbcompile-readout');
    if (bar && readout) {
      readout.textContent = bar.getAttribute('data-about');
    }
  }

  private readonly body = document.createElement('div');
  private readonly _changed = new Signal<this, void>(this);
  private choice: IChoice = { order: null, rows: FIRST_ROWS };
  private regions: readonly IRegion[] = [];
  private _report: IReport | null = null;
}

const EVENTS = ['click', 'focusin', 'pointerover'] as const;
const shown = new Set<ReportView>();
const shownChanged = new Signal<object, void>({});
