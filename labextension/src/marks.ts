/**
 * Marks the cells that recompiled, from what their own outputs hold. No kernel is asked.
 */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { CodeCell } from '@jupyterlab/cells';
import { INotebookTracker, type NotebookPanel, type StaticNotebook } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import type { IDisposable } from '@lumino/disposable';

import { CellMark } from './mark';

const ID = 'nbcompile:marks';

export const marks: JupyterFrontEndPlugin<void> = {
  id: ID,
  description: 'Marks notebook cells that recompiled, with the reasons.',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ISettingRegistry],
  activate: async (
    _app: JupyterFrontEnd,
    tracker: INotebookTracker,
    registry: ISettingRegistry | null
  ): Promise<void> => {
    const notebooks = new Set<NotebookMarks>();
    let on = true;
    const follow = (panel: NotebookPanel): void => {
      const followed = new NotebookMarks(panel.content, on);
      notebooks.add(followed);
      panel.disposed.connect(() => {
        followed.dispose();
        notebooks.delete(followed);
      });
    };
    if (registry) {
      try {
        const settings = await registry.load(ID);
        const read = (): void => {
          on = settings.composite['enabled'] !== false;
          notebooks.forEach(followed => {
            followed.on = on;
          });
        };
        settings.changed.connect(read);
        read();
      } catch (error) {
        console.warn('nbcompile: the settings of its marks cannot be read; cells are marked.', error);
      }
    }
    tracker.widgetAdded.connect((_, panel) => {
      follow(panel);
    });
    tracker.forEach(follow); // those that were opened while the settings were read
  }
};

/** The marks of one notebook. */
export class NotebookMarks implements IDisposable {
  private readonly marks = new Map<CodeCell, CellMark>();
  private cells: NonNullable<StaticNotebook['model']>['cells'] | null = null;
  private disposed = false;

  constructor(
    private readonly notebook: StaticNotebook,
    private enabled: boolean
  ) {
    notebook.modelChanged.connect(this.modelChanged, this);
    this.modelChanged();
  }

  get isDisposed(): boolean {
    return this.disposed;
  }

  set on(on: boolean) {
    this.enabled = on;
    this.look();
  }

  dispose(): void {
    if (this.disposed) {
      return;
    }
    this.disposed = true;
    this.enabled = false;
    this.notebook.modelChanged.disconnect(this.modelChanged, this);
    this.cells?.changed.disconnect(this.look, this);
    this.cells = null;
    this.marks.forEach(mark => {
      mark.dispose();
    });
    this.marks.clear();
  }

  private modelChanged(): void {
    this.cells?.changed.disconnect(this.look, this);
    this.cells = this.notebook.model?.cells ?? null;
    this.cells?.changed.connect(this.look, this); // after the notebook itself, which makes the widgets
    this.look();
  }

  /** Give each cell its mark, also those that are out of view, and forget those that are gone. */
  private look(): void {
    const present = new Set<CodeCell>();
    for (const widget of this.enabled ? this.notebook.widgets : []) {
      if (widget instanceof CodeCell && !widget.isDisposed) {
        present.add(widget);
      }
    }
    for (const [cell, mark] of this.marks) {
      if (!present.has(cell)) {
        mark.dispose();
        this.marks.delete(cell);
      }
    }
    for (const cell of present) {
      if (!this.marks.has(cell)) {
        this.marks.set(cell, new CellMark(cell));
      }
    }
  }
}
