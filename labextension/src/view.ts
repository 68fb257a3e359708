/**
 * One report on the page.
 */
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';

export class ReportView extends Widget implements IRenderMime.IRenderer {
  constructor(private readonly mimeType: string) {
    super();
    this.addClass('nbcompile-Report');
  }

  /** Draw what an output holds now. Called again, on the same widget, whenever the output changes. */
  renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const data: unknown = model.data[this.mimeType];
    this.node.textContent = typeof data === 'string' ? data : JSON.stringify(data);
    return Promise.resolve();
  }
}
