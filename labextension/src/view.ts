/**
 * One report on the page.
 */
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { type ISignal, Signal } from '@lumino/signaling';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';

import { readReport } from './read';
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
    this.body.textContent = reading.problem ?? '';
    this._changed.emit();
    return Promise.resolve();
  }

  protected override onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    shown.add(this);
    shownChanged.emit();
  }

  protected override onBeforeDetach(message: Message): void {
    shown.delete(this);
    shownChanged.emit();
    super.onBeforeDetach(message);
  }

  private readonly body = document.createElement('div');
  private readonly _changed = new Signal<this, void>(this);
  private _report: IReport | null = null;
}

const shown = new Set<ReportView>();
const shownChanged = new Signal<object, void>({});
