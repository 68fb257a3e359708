/**
 * The item in the status bar: what is compiled in the current kernel, live while a cell compiles.
 */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IStatusBar } from '@jupyterlab/statusbar';
import { Signal, type ISignal } from '@lumino/signaling';
import { Widget } from '@lumino/widgets';

import { ICurrentKernel, OPEN_SIDEBAR } from './current';
import { statusLine, workLine } from './states';

/** The item. Pressed, it opens the side bar. */
class StatusItem extends Widget {
  constructor(
    private readonly kernels: ICurrentKernel,
    private readonly pressed: () => void
  ) {
    super({ node: document.createElement('button') });
    this.addClass('nbcompile-Status');
    (this.node as HTMLButtonElement).type = 'button';
    this.node.addEventListener('click', this);
    kernels.changed.connect(this.refresh, this);
    kernels.told.connect(this.refresh, this);
    this.refresh();
  }

  get active(): boolean {
    return this.kernels.link !== null && this.kernels.link.status !== null;
  }

  get activeChanged(): ISignal<this, void> {
    return this._activeChanged;
  }

  handleEvent(event: Event): void {
    if (event.type === 'click') {
      this.pressed();
    }
  }

  override dispose(): void {
    this.node.removeEventListener('click', this);
    Signal.clearData(this);
    super.dispose();
  }

  private refresh(): void {
    const status = this.kernels.link?.status ?? null;
    const text = status === null ? '' : statusLine(status);
    if (this.node.textContent !== text) {
      this.node.textContent = text;
    }
    this.node.classList.toggle('nbcompile-mod-working', Boolean(status?.work));
    this.node.title = status?.work ? workLine(status.work) : 'What nbcompile has compiled. Press to open its side bar.';
    if (this.active !== this.wasActive) {
      this.wasActive = this.active;
      this._activeChanged.emit();
    }
  }

  private readonly _activeChanged = new Signal<this, void>(this);
  private wasActive = false;
}

export const status: JupyterFrontEndPlugin<void> = {
  id: 'nbcompile:status',
  description: 'Shows in the status bar what nbcompile has compiled, live while a cell runs.',
  autoStart: true,
  requires: [ICurrentKernel],
  optional: [IStatusBar], // Notebook 7 has none
  activate: (app: JupyterFrontEnd, kernels: ICurrentKernel, bar: IStatusBar | null): void => {
    if (bar === null) {
      return;
    }
    const item = new StatusItem(kernels, () => {
      if (app.commands.hasCommand(OPEN_SIDEBAR)) {
        void app.commands.execute(OPEN_SIDEBAR);
      }
    });
    bar.registerStatusItem('nbcompile:status', {
      item,
      align: 'left',
      rank: 3,
      isActive: () => item.active,
      activeStateChanged: item.activeChanged
    });
  }
};
