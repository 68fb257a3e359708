/**
 * The kernel that the user works with: that of the notebook or console which they looked at last.
 */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import type { ISessionContext } from '@jupyterlab/apputils';
import { IConsoleTracker, type ConsolePanel } from '@jupyterlab/console';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';
import { Token } from '@lumino/coreutils';
import { Signal, type ISignal } from '@lumino/signaling';

import { KernelLink } from './kernel';

export interface ICurrentKernel {
  /** The notebook or console; null if there is none. */
  readonly panel: NotebookPanel | ConsolePanel | null;
  /** The same if it is a notebook. */
  readonly notebook: NotebookPanel | null;
  /** The way to its kernel; null while it has none. */
  readonly link: KernelLink | null;
  /** Emitted when another panel or kernel is the current one. */
  readonly changed: ISignal<ICurrentKernel, void>;
  /** Emitted when the current kernel has told something. */
  readonly told: ISignal<ICurrentKernel, void>;
}

export const ICurrentKernel = new Token<ICurrentKernel>(
  'nbcompile:ICurrentKernel',
  'The kernel of the notebook or console that the user works with.'
);

/** Commands of this extension that its parts call. */
export const OPEN_SIDEBAR = 'nbcompile:open-sidebar';
export const CANCEL = 'nbcompile:cancel';

type Panel = NotebookPanel | ConsolePanel;

class CurrentKernel implements ICurrentKernel {
  constructor(
    private readonly notebooks: INotebookTracker,
    private readonly consoles: IConsoleTracker | null
  ) {
    notebooks.currentChanged.connect((_, panel) => this.look(panel));
    consoles?.currentChanged.connect((_, panel) => this.look(panel));
    this.look(notebooks.currentWidget ?? consoles?.currentWidget ?? null);
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get told(): ISignal<this, void> {
    return this._told;
  }

  get panel(): Panel | null {
    return this._panel;
  }

  get notebook(): NotebookPanel | null {
    return this._panel !== null && this.notebooks.has(this._panel) ? (this._panel as NotebookPanel) : null;
  }

  get link(): KernelLink | null {
    return this._link;
  }

  private look(panel: Panel | null): void {
    // without a panel the tracker's last one was closed; the other tracker may have one
    const next = panel ?? this.notebooks.currentWidget ?? this.consoles?.currentWidget ?? null;
    if (next === this._panel) {
      return;
    }
    if (this._panel !== null && !this._panel.isDisposed) {
      this._panel.sessionContext.kernelChanged.disconnect(this.onKernel, this);
    }
    this._panel = next;
    next?.sessionContext.kernelChanged.connect(this.onKernel, this);
    this.follow(next?.sessionContext);
  }

  private onKernel(context: ISessionContext): void {
    this.follow(context);
  }

  private follow(context: ISessionContext | undefined): void {
    const kernel = context?.session?.kernel ?? null;
    this._link?.changed.disconnect(this.onTold, this);
    this._link = kernel === null || kernel.isDisposed ? null : this.linkTo(kernel);
    this._link?.changed.connect(this.onTold, this);
    this._changed.emit();
  }

  /**
   * The way to a kernel. Of several connections to one kernel, as a console has one beside its notebook's, Lab lets only
   * the first handle comms; so they share a way.
   */
  private linkTo(kernel: Kernel.IKernelConnection): KernelLink {
    for (const link of this.links) {
      if (link.kernel === kernel || (link.kernel.id === kernel.id && !kernel.handleComms)) {
        return link;
      }
    }
    // where the first connection is closed already, none is left that would handle comms
    const own = kernel.handleComms ? kernel : kernel.clone({ handleComms: true });
    const link = new KernelLink(own);
    this.links.add(link);
    if (own !== kernel) {
      kernel.disposed.connect(() => own.dispose());
    }
    own.disposed.connect(() => {
      this.links.delete(link);
      if (link === this._link) {
        this.follow(this._panel?.isDisposed ? undefined : this._panel?.sessionContext);
      }
    });
    return link;
  }

  private onTold(): void {
    this._told.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _told = new Signal<this, void>(this);
  private readonly links = new Set<KernelLink>();
  private _panel: Panel | null = null;
  private _link: KernelLink | null = null;
}

export const current: JupyterFrontEndPlugin<ICurrentKernel> = {
  id: 'nbcompile:kernel',
  description: 'Talks to nbcompile in the kernel of the current notebook or console.',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [IConsoleTracker],
  provides: ICurrentKernel,
  activate: (_app: JupyterFrontEnd, notebooks: INotebookTracker, consoles: IConsoleTracker | null): ICurrentKernel =>
    new CurrentKernel(notebooks, consoles)
};
