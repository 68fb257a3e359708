/**
 * The side bar: the models in the current kernel, what goes on there, and the runs that the notebook holds.
 */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { LabIcon } from '@jupyterlab/ui-components';
import { Throttler } from '@lumino/polling';
import { Widget } from '@lumino/widgets';

import { CANCEL, ICurrentKernel, OPEN_SIDEBAR } from './current';
import { button, setText } from './controls';
import { html } from './dom';
import { History, type IRun } from './history';
import type { KernelLink } from './kernel';
import { ModelCard } from './modelcard';
import { readModels, readText, type IModels, type IStatus } from './protocol';
import { obstacle, workLine, workShare, workTimes } from './states';
import icon from '../style/icon.svg';

const ID = 'nbcompile-sidebar';

export const nbcompileIcon = new LabIcon({ name: 'nbcompile:icon', svgstr: icon });

/** Milliseconds between two readings of the notebook's outputs, which change ten times a second while work goes on. */
const HISTORY_EVERY = 500;

class SideBar extends Widget {
  constructor(private readonly kernels: ICurrentKernel) {
    super();
    this.id = ID;
    this.title.icon = nbcompileIcon;
    this.title.caption = 'nbcompile: models, compiling, runs';
    this.addClass('nbcompile-SideBar');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', 'nbcompile');
    this.cancel = button('Cancel', () => void this.cancelWork(), 'jp-mod-warn');
    this.message.setAttribute('role', 'status');
    this.work.append(this.workText, this.bar, html('div', { class: 'nbcompile-row' }, this.workNumbers, this.cancel));
    this.node.append(
      html('h2', {}, 'nbcompile'),
      this.where,
      this.hint,
      this.work,
      this.message,
      this.models,
      html('h2', {}, 'Runs in this notebook'),
      this.runs
    );
    this.throttler = new Throttler(() => this.showHistory(), { limit: HISTORY_EVERY });
    kernels.changed.connect(this.onPanel, this);
    kernels.told.connect(this.onTold, this);
    this.onPanel();
  }

  override dispose(): void {
    if (this.isDisposed) {
      return;
    }
    this.throttler.dispose();
    this.kernels.changed.disconnect(this.onPanel, this);
    this.kernels.told.disconnect(this.onTold, this);
    this.watchNotebook(null);
    super.dispose();
  }

  /** Ask the kernel to stop what goes on; what came of it is shown. */
  async cancelWork(): Promise<void> {
    const link = this.kernels.link;
    if (link === null) {
      return;
    }
    this.cancel.disabled = true; // until the kernel tells its next state
    await this.tell(link, link.cancel());
    this.showWork(link.status);
  }

  protected override onAfterShow(): void {
    this.kernels.link?.retry();
    this.onTold();
    void this.throttler.invoke();
  }

  private onPanel(): void {
    const panel = this.kernels.panel;
    setText(this.where, panel?.title.label ?? '');
    this.where.hidden = panel === null;
    this.watchNotebook(this.kernels.notebook);
    if (this.kernels.link !== this.asked) {
      this.asked = this.kernels.link;
      this.listed = null;
      this.revision = -1;
      setText(this.message, '');
    }
    this.onTold();
    void this.throttler.invoke();
  }

  private onTold(): void {
    const link = this.kernels.link;
    const status = link?.status ?? null;
    const hint = status === null ? obstacle(link?.state ?? null, link?.version ?? '') : '';
    setText(this.hint, hint);
    this.hint.hidden = hint === '';
    this.showWork(status);
    const working = status !== null && status.work !== null;
    if (working && !this.working && !this.asking) {
      setText(this.message, ''); // it was about something earlier
    }
    this.working = working;
    if (link === null || status === null) {
      this.listed = null;
      this.revision = -1;
    } else if (this.isVisible && link.state === 'open' && !status.busy && status.revision !== this.revision) {
      this.revision = status.revision;
      void this.list(link);
    }
    this.showModels(status);
  }

  /** Ask for the models. */
  private async list(link: KernelLink): Promise<void> {
    try {
      const models = readModels(await link.ask('models'));
      if (link === this.kernels.link && !this.isDisposed) {
        this.listed = models;
        if (models.stale) {
          this.revision = -1; // a cell has begun meanwhile: ask once it has ended
        }
        this.showModels(link.status);
      }
    } catch {
      this.revision = -1;
    }
  }

  private showWork(status: IStatus | null): void {
    const work = status?.work ?? null;
    const waiting = status?.waiting ?? [];
    this.work.hidden = work === null && waiting.length === 0;
    this.cancel.disabled = this.work.hidden;
    setText(
      this.workText,
      work === null ? waiting.map(each => `${each} waits for the running cell`).join('; ') : workLine(work)
    );
    setText(this.workNumbers, work === null ? '' : workTimes(work));
    this.bar.hidden = work === null;
    const share = status === null ? null : workShare(status);
    if (share === null) {
      this.bar.removeAttribute('value'); // it moves, and says nothing of how far
    } else {
      this.bar.max = share.of;
      this.bar.value = share.done;
    }
  }

  private showModels(status: IStatus | null): void {
    const listed = status === null ? null : this.listed;
    const names = new Set(listed?.models.map(model => model.name));
    for (const [name, card] of this.cards) {
      if (!names.has(name)) {
        card.node.remove();
        this.cards.delete(name);
      }
    }
    for (const [place, model] of (listed?.models ?? []).entries()) {
      let card = this.cards.get(model.name);
      if (card === undefined) {
        card = new ModelCard(model.name, {
          compile: (name, settings) => void this.ask('compile', { name, ...settings }),
          restore: name => void this.ask('restore', { name })
        });
        this.cards.set(model.name, card);
      }
      if (this.cardList.children[place] !== card.node) {
        // moved only if it has to be: a list of values that is open would close
        this.cardList.insertBefore(card.node, this.cardList.children[place] ?? null);
      }
      card.show(model, this.asking);
    }
    let text = '';
    if (status !== null && listed === null) {
      text = status.busy ? 'The models are listed once the running cell has ended.' : '';
    } else if (listed?.models.length === 0) {
      text = 'No variable of this kernel is a model that could be compiled.';
    } else if (listed !== null && listed.more > 0) {
      text = `and ${listed.more} more`;
    }
    setText(this.modelsHint, text);
    this.modelsHint.hidden = text === '';
  }

  /** Have the kernel compile or restore a model. */
  private async ask(method: string, params: Record<string, string>): Promise<void> {
    const link = this.kernels.link;
    if (link === null) {
      return;
    }
    this.asking = true;
    if (link.status?.busy) {
      setText(this.message, 'Waits for the running cell …');
    }
    this.showModels(link.status);
    await this.tell(
      link,
      link.ask(method, params).then(answer => readText(answer, 'message'))
    );
    this.asking = false;
    this.showModels(link.status);
  }

  /** Show what a question to the kernel came to. */
  private async tell(link: KernelLink, answer: Promise<string>): Promise<void> {
    let text: string;
    let failed = false;
    try {
      text = await answer;
    } catch (error) {
      text = error instanceof Error ? error.message : String(error);
      failed = true;
    }
    if (link === this.kernels.link && !this.isDisposed) {
      setText(this.message, text);
      this.message.classList.toggle('nbcompile-mod-error', failed);
    }
  }

  private watchNotebook(notebook: NotebookPanel | null): void {
    if (this.notebook !== null && !this.notebook.isDisposed) {
      this.notebook.content.modelContentChanged.disconnect(this.onContent, this);
    }
    this.notebook = notebook;
    notebook?.content.modelContentChanged.connect(this.onContent, this);
  }

  private onContent(): void {
    if (this.isVisible) {
      void this.throttler.invoke();
    }
  }

  private showHistory(): void {
    if (this.isDisposed) {
      return;
    }
    const notebook = this.kernels.notebook;
    const runs = this.history.runs(notebook);
    const text = JSON.stringify(runs);
    if (text === this.shownRuns) {
      return;
    }
    this.shownRuns = text;
    this.runs.replaceChildren(...runs.map(run => this.runNode(run)));
    if (runs.length === 0) {
      this.runs.append(
        html('p', { class: 'nbcompile-faint' }, 'Reports in its outputs are listed here. There are none yet.')
      );
    }
  }

  private runNode(run: IRun): HTMLElement {
    const table = html('table');
    const head = html('tr', {}, ...['', 'cold', 'steady'].map(text => html('th', {}, text)));
    const rows = run.figures.map(figures =>
      html('tr', {}, html('th', {}, figures.name), html('td', {}, figures.cold), html('td', {}, figures.steady))
    );
    table.append(html('thead', {}, head), html('tbody', {}, ...rows));
    const made = html(
      'button',
      { class: 'nbcompile-run' },
      html('span', {}, html('strong', {}, run.prompt), ` ${run.what}${run.model ? ` ${run.model}` : ''}`),
      ...(rows.length > 0 ? [table] : [])
    );
    made.type = 'button';
    made.title = 'Go to the cell';
    made.addEventListener('click', () => void this.goTo(run.cell));
    return made;
  }

  private async goTo(cell: number): Promise<void> {
    const content = this.kernels.notebook?.content;
    if (content && cell < content.widgets.length) {
      content.activeCellIndex = cell;
      await content.scrollToItem(cell, 'smart');
    }
  }

  private readonly where = html('p', { class: 'nbcompile-where' });
  private readonly hint = html('p', { class: 'nbcompile-hint' });
  private readonly work = html('section', { class: 'nbcompile-work' });
  private readonly workText = html('p');
  private readonly workNumbers = html('span', { class: 'nbcompile-numbers' });
  private readonly bar = html('progress');
  private readonly message = html('p', { class: 'nbcompile-message' });
  private readonly cardList = html('div');
  private readonly modelsHint = html('p', { class: 'nbcompile-faint' });
  private readonly models = html('div', {}, this.cardList, this.modelsHint);
  private readonly runs = html('div', { class: 'nbcompile-runs' });
  private readonly cancel: HTMLButtonElement;
  private readonly cards = new Map<string, ModelCard>();
  private readonly history = new History();
  private readonly throttler: Throttler;
  private notebook: NotebookPanel | null = null;
  private asked: KernelLink | null = null;
  private asking = false;
  private working = false;
  private listed: IModels | null = null;
  private revision = -1;
  private shownRuns = '-';
}

function isCancellable(status: IStatus | null): boolean {
  return status !== null && (status.work !== null || status.waiting.length > 0);
}

export const sidebar: JupyterFrontEndPlugin<void> = {
  id: 'nbcompile:sidebar',
  description: 'The models in the kernel, with controls to compile, restore and cancel, and the runs of the notebook.',
  autoStart: true,
  requires: [ICurrentKernel],
  activate: (app: JupyterFrontEnd, kernels: ICurrentKernel): void => {
    const sideBar = new SideBar(kernels);
    app.shell.add(sideBar, 'right', { rank: 700, type: 'nbcompile' }); // Notebook 7 has a right area too
    app.commands.addCommand(OPEN_SIDEBAR, {
      label: 'Open the Side Bar of nbcompile',
      caption: 'The models in the kernel, what is compiled of them, and the runs of this notebook',
      icon: nbcompileIcon,
      describedBy: { args: {} },
      execute: () => app.shell.activateById(ID)
    });
    app.commands.addCommand(CANCEL, {
      label: 'Cancel Compiling (nbcompile)',
      caption: 'Stop what nbcompile does in the kernel; a cell that does something else goes on',
      describedBy: { args: {} },
      isEnabled: () => isCancellable(kernels.link?.status ?? null),
      execute: () => sideBar.cancelWork()
    });
    kernels.told.connect(() => app.commands.notifyCommandChanged(CANCEL));
  }
};
