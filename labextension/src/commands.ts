/**
 * The commands that write cells: in the palette, a notebook's toolbar and the Run menu. Where they stand there is said
 * in schema/commands.json, and so are the defaults of what they write.
 */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Dialog, ICommandPalette, showDialog } from '@jupyterlab/apputils';
import { INotebookTracker, NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';
import { ISettingRegistry } from '@jupyterlab/settingregistry';

import {
  compareCell,
  compileCell,
  DEFAULTS,
  LOAD,
  obstacle,
  panelCell,
  planCell,
  readDefaults,
  restoreCell,
  stepCell,
  tuneCell,
  type ICells,
  type IDefaults,
  type INames
} from './cells';
import { choose, type INeed } from './choose';
import { blocksIcon } from './icon';
import { ask, type Answer } from './names';
import { askNames } from './namesform';

const ID = 'nbcompile:commands';
const CATEGORY = 'nbcompile';
const STEP = 'nbcompile:compile-step';

/** What a command is called and when it can be used. */
type Looks = Omit<Parameters<JupyterFrontEnd['commands']['addCommand']>[1], 'execute'>;

type Run = (panel: NotebookPanel) => Promise<void>;

/** A command that writes a cell of its own. */
interface IInsertion extends INeed {
  id: string;
  label: string;
  caption: string;
  write: (names: INames, defaults: IDefaults) => ICells;
}

const INSERTIONS: readonly IInsertion[] = [
  {
    id: 'nbcompile:insert-compile',
    label: 'Insert Compile Cell',
    caption: 'A cell that compiles a model block by block',
    step: 'used',
    compiled: false,
    write: compileCell
  },
  {
    id: 'nbcompile:insert-compare',
    label: 'Insert Compare',
    caption: 'A cell that measures eager and compiled strategies side by side',
    step: 'needed',
    compiled: false,
    write: compareCell
  },
  {
    id: 'nbcompile:insert-tune',
    label: 'Insert Tune',
    caption: 'A cell that looks for the best setting for a number of calls',
    step: 'needed',
    compiled: false,
    write: tuneCell
  },
  {
    id: 'nbcompile:insert-panel',
    label: 'Insert Panel',
    caption: 'A cell with controls to compile, compare, tune and take back',
    step: 'used',
    compiled: false,
    write: panelCell
  },
  {
    id: 'nbcompile:insert-plan',
    label: 'Insert Plan',
    caption: 'A cell that shows which parts of a model would be compiled, and why',
    step: null,
    compiled: false,
    write: planCell
  },
  {
    id: 'nbcompile:insert-restore',
    label: 'Insert Restore',
    caption: 'A cell that makes a model as if it had never been compiled',
    step: null,
    compiled: true,
    write: restoreCell
  }
];

export const commands: JupyterFrontEndPlugin<void> = {
  id: ID,
  description: 'Commands that write cells which compile, compare, tune and restore.',
  autoStart: true,
  requires: [INotebookTracker],
  optional: [ICommandPalette, ISettingRegistry],
  activate: async (
    app: JupyterFrontEnd,
    tracker: INotebookTracker,
    palette: ICommandPalette | null,
    registry: ISettingRegistry | null
  ): Promise<void> => {
    let defaults = DEFAULTS;
    // the notebook in front: with a console in front none, although the tracker remembers one
    const current = (): NotebookPanel | null =>
      tracker.currentWidget !== null && tracker.currentWidget === app.shell.currentWidget
        ? tracker.currentWidget
        : null;
    const add = (command: string, options: Looks, run: Run): void => {
      app.commands.addCommand(command, {
        isEnabled: () => current() !== null,
        describedBy: { args: { type: 'object', properties: {} } },
        ...options,
        execute: async () => {
          const panel = current();
          if (panel) {
            await run(panel);
          }
        }
      });
      palette?.addItem({ command, category: CATEGORY });
    };
    add(
      STEP,
      {
        label: "Compile This Cell's Step",
        caption: 'Compile the model that this cell runs, with the cell as the step',
        icon: blocksIcon,
        isEnabled: () => current()?.content.activeCell?.model.type === 'code'
      },
      panel => compileStep(panel, defaults)
    );
    for (const insertion of INSERTIONS) {
      const { id, label, caption } = insertion;
      add(id, { label, caption }, panel => insert(panel, insertion, defaults));
    }
    add('nbcompile:load', { label: 'Load nbcompile', caption: 'Run %load_ext nbcompile in a cell of its own' }, load);
    tracker.activeCellChanged.connect(() => {
      app.commands.notifyCommandChanged(STEP);
    });
    if (registry) {
      try {
        const settings = await registry.load(ID);
        const read = (): void => {
          defaults = readDefaults(settings.composite as Record<string, unknown>);
        };
        settings.changed.connect(read);
        read();
      } catch (error) {
        console.warn('nbcompile: the settings of its commands cannot be read; their defaults are used.', error);
      }
    }
  }
};

/** Make the active cell a step of `%%compile_regional`. */
async function compileStep(panel: NotebookPanel, defaults: IDefaults): Promise<void> {
  const cell = panel.content.activeCell?.model;
  if (!cell) {
    return;
  }
  const title = "Compile This Cell's Step";
  const source = cell.sharedModel.getSource();
  const wrong = obstacle(source);
  if (wrong !== null) {
    await tell(title, wrong);
    return;
  }
  const names = await namesFor(panel, title, source, { step: null, compiled: false });
  const place = panel.content.widgets.findIndex(widget => widget.model === cell);
  if (names === null || place < 0 || cell.sharedModel.getSource() !== source) {
    return; // meanwhile the cell was taken away or written anew
  }
  await writing(title, () => {
    const { above, source: text } = stepCell(source, names, defaults);
    panel.content.model?.sharedModel.transact(() => {
      cell.sharedModel.setSource(text);
      if (above !== null) {
        panel.content.model?.sharedModel.insertCell(place, { cell_type: 'code', source: above });
      }
    });
    panel.content.activeCellIndex = above === null ? place : place + 1;
  });
}

/** Write a cell below the active one. */
async function insert(panel: NotebookPanel, insertion: IInsertion, defaults: IDefaults): Promise<void> {
  const source = panel.content.activeCell?.model.sharedModel.getSource() ?? '';
  const names = await namesFor(panel, insertion.label, source, insertion);
  if (names === null) {
    return;
  }
  await writing(insertion.label, () => {
    below(panel, insertion.write(names, defaults).source);
  });
}

/** Load the extension of IPython, by a cell that stays, so that the notebook runs from its beginning the next time. */
async function load(panel: NotebookPanel): Promise<void> {
  const answer = await ask(panel.sessionContext);
  if (answer.kind === 'unfit') {
    await tell('Load nbcompile', answer.why);
  } else if (answer.kind === 'found' && answer.found.loaded) {
    await tell('Load nbcompile', 'nbcompile is loaded in this kernel already.');
  } else {
    below(panel, LOAD);
    await NotebookActions.run(panel.content, panel.sessionContext);
  }
}

/** The names for a cell: those that the kernel has, or that the user gives. Null if there shall be no cell. */
async function namesFor(panel: NotebookPanel, title: string, source: string, need: INeed): Promise<INames | null> {
  const answer = await ask(panel.sessionContext, source);
  if (panel.isDisposed) {
    return null;
  }
  if (answer.kind === 'unfit') {
    await tell(title, answer.why);
    return null;
  }
  const found = answer.kind === 'found' ? answer.found : { loaded: false, models: [], steps: [] };
  if (answer.kind === 'found' && found.models.length === 0) {
    await tell(
      title,
      'There is no model in this kernel: no variable is a torch.nn.Module. Run the cells that create the model first.'
    );
    return null;
  }
  const choice = choose(found, source, need);
  if (choice.certain) {
    return { model: choice.model, step: choice.step, loaded: found.loaded };
  }
  const named = await askNames({
    title,
    why: why(answer, need),
    models: choice.models,
    model: choice.model,
    steps: need.step === null ? null : choice.steps,
    step: choice.step,
    stepNeeded: need.step === 'needed'
  });
  if (named === null || panel.isDisposed) {
    return null;
  }
  if (named.model === '' || (need.step === 'needed' && named.step === '')) {
    const what = named.model === '' ? 'a model: a variable or an expression that gives one' : NO_STEP;
    await tell(title, `Nothing was inserted, as this cell needs ${what}.`);
    return null;
  }
  return { ...named, loaded: found.loaded };
}

const NO_STEP = 'a step: a function that runs the model once, such as lambda: model(x)';

function why(answer: Answer, need: INeed): string {
  if (answer.kind !== 'found') {
    return `${answer.kind === 'unknown' ? answer.why : ''} Name what the cell shall use:`.trim();
  }
  const { models } = answer.found;
  if (models.length > 1 && models.filter(({ used }) => used).length !== 1) {
    return 'There is more than one model in this kernel. Which one is meant?';
  }
  return need.step === 'needed' && !answer.found.steps.some(step => step.models.length > 0)
    ? `This needs ${NO_STEP}. No function here runs the model without arguments.`
    : 'Which function runs the model once?';
}

function below(panel: NotebookPanel, source: string): void {
  const notebook = panel.content;
  const place = notebook.widgets.length === 0 ? 0 : notebook.activeCellIndex + 1;
  notebook.model?.sharedModel.insertCell(place, { cell_type: 'code', source });
  notebook.activeCellIndex = place;
  notebook.deselectAll();
  void notebook.scrollToItem(place).catch(() => undefined); // of a notebook that was closed meanwhile
}

/** Write cells; where that cannot be, say why. */
async function writing(title: string, write: () => void): Promise<void> {
  try {
    write();
  } catch (error) {
    await tell(title, error instanceof Error ? error.message : String(error));
  }
}

async function tell(title: string, body: string): Promise<void> {
  await showDialog({ title, body, buttons: [Dialog.okButton({ label: 'OK' })] });
}
