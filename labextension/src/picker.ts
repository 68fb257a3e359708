/**
 * Which other report to lay beside one: saved reports that are open, outputs of open notebooks, or a file.
 */
import { Dialog } from '@jupyterlab/apputils';
import { CodeCell } from '@jupyterlab/cells';
import type { IDocumentManager } from '@jupyterlab/docmanager';
import type { DocumentRegistry } from '@jupyterlab/docregistry';
import { FileDialog } from '@jupyterlab/filebrowser';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { Widget } from '@lumino/widgets';

import { html } from './dom';
import { FILE_ENDING, MIME_TYPE } from './mime';
import type { ISource } from './pairpane';
import { readReport, type Reading } from './read';
import { clean } from './units';
import { head } from './words';

/** What is open in the application. */
export interface IOpen {
  /** Contexts of open documents. */
  documents: readonly DocumentRegistry.Context[];
  notebooks: readonly NotebookPanel[];
}

export const TITLE = 'Compare with…';

/** Where a report that is on the page is from, in the reader's words. */
export function placeOf(node: Node, open: IOpen, path: string | null): string {
  if (path !== null) {
    return path;
  }
  for (const panel of open.notebooks) {
    const place = outputsOf(panel).find(({ shown }) => shown?.contains(node));
    if (place !== undefined) {
      return place.label;
    }
  }
  return 'this output';
}

/** The other reports that are at hand: those of the same notebook come first. `path` is that of the report's own file. */
export function othersOf(node: Node, open: IOpen, path: string | null): ISource[] {
  const [own, others] = [
    open.notebooks.filter(panel => panel.node.contains(node)),
    open.notebooks.filter(panel => !panel.node.contains(node))
  ];
  const outputs = (panels: readonly NotebookPanel[], named: boolean): ISource[] =>
    panels.flatMap(panel =>
      outputsOf(panel)
        .filter(({ shown }) => !shown?.contains(node))
        .map(({ label, source }) => ({ ...source, label: named ? `${panel.context.path}, ${label}` : label }))
    );
  const documents = [...new Set(open.documents)].filter(
    context => context.path.endsWith(FILE_ENDING) && context.path !== path
  );
  return [...outputs(own, false), ...documents.map(documentSource), ...outputs(others, true)].filter(
    source => source.read().report !== undefined
  );
}

/** Ask the reader for another report; null if they want none. An unreadable file is an error that says so. */
export async function pickOther(others: readonly ISource[], manager: IDocumentManager): Promise<ISource | null> {
  if (others.length === 0) {
    return pickFile(manager);
  }
  const dialog = new Dialog<number>({
    title: TITLE,
    body: new Choices(others),
    buttons: [Dialog.cancelButton(), Dialog.okButton({ label: 'Compare' })],
    focusNodeSelector: 'input'
  });
  const { button, value } = await dialog.launch();
  if (!button.accept || value === null) {
    return null;
  }
  return others[value] ?? pickFile(manager);
}

/** The reports that can be chosen, and below them a file. */
class Choices extends Widget implements Dialog.IBodyWidget<number> {
  constructor(others: readonly ISource[]) {
    super({
      node: html(
        'fieldset',
        { class: 'nbcompile-Choices' },
        html('legend', {}, 'A report that is open, or a file:'),
        ...[...others.map(aboutOf), { label: 'A file…', about: '' }].map(({ label, about }, index) =>
          html(
            'label',
            {},
            html('input', { type: 'radio', name: 'nbcompile-other', value: index, checked: index === 0 ? '' : null }),
            html('span', {}, label, about ? html('small', {}, about) : null)
          )
        )
      )
    });
  }

  /** The index of the chosen one; one beyond the last is a file. */
  getValue(): number {
    return Number(this.node.querySelector<HTMLInputElement>('input:checked')?.value ?? 0);
  }
}

function aboutOf(source: ISource): { label: string; about: string } {
  const { report } = source.read();
  const created = clean(report?.created ?? '', 60);
  const about = report === undefined ? '' : [head(report), created ? `made ${created}` : ''].filter(said => said);
  return { label: clean(source.label, 160), about: typeof about === 'string' ? about : about.join(' · ') };
}

async function pickFile(manager: IDocumentManager): Promise<ISource | null> {
  const { button, value } = await FileDialog.getOpenFiles({
    title: TITLE,
    label: 'Choose a saved report (a .json file):',
    manager,
    filter: item => (item.type === 'directory' || item.path.endsWith('.json') ? {} : null)
  });
  const chosen = value?.find(item => item.type !== 'directory');
  if (!button.accept || value === null) {
    return null;
  }
  if (chosen === undefined) {
    throw new Error('No file was chosen. Choose one whose name ends in .json, such as report.save(...) writes.');
  }
  const file = await manager.services.contents.get(chosen.path, { type: 'file', format: 'text', content: true });
  const reading = readReport(file.content);
  if (reading.problem !== undefined) {
    throw new Error(`${clean(chosen.path, 160)}: ${reading.problem}`);
  }
  return { label: chosen.path, read: () => reading, changes: [] };
}

function documentSource(context: DocumentRegistry.Context): ISource {
  return {
    label: context.path,
    read: remembered(() => (context.isDisposed ? null : context.model.toString())),
    changes: [context.model.contentChanged, context.disposed]
  };
}

interface IOutputPlace {
  label: string;
  source: ISource;
  /** The element that shows it, if it is on the page. */
  shown: Node | null;
}

/** The reports among a notebook's outputs, whether they are in view or not. */
function outputsOf(panel: NotebookPanel): IOutputPlace[] {
  return panel.content.widgets.flatMap((cell, index) => {
    if (!(cell instanceof CodeCell)) {
      return [];
    }
    const { outputs, executionCount } = cell.model;
    const places: IOutputPlace[] = [];
    for (let at = 0; at < outputs.length; at += 1) {
      if (outputs.get(at).data[MIME_TYPE] === undefined) {
        continue;
      }
      const which = outputs.length > 1 ? `, output ${at + 1}` : '';
      const named = executionCount === null ? `cell ${index + 1}` : `cell [${executionCount}]`;
      places.push({
        label: `${named}${which}`,
        source: {
          label: `${named}${which}`,
          read: remembered(() => (at < outputs.length ? outputs.get(at).data[MIME_TYPE] : null)),
          changes: [outputs.changed, outputs.stateChanged]
        },
        shown: cell.outputArea.widgets[at]?.node ?? null
      });
    }
    return places;
  });
}

/** Reads what is there now; what has not changed is read once. */
function remembered(find: () => unknown): () => Reading {
  let last: { data: unknown; reading: Reading } | null = null;
  return () => {
    const data = find();
    if (last === null || last.data !== data) {
      last = { data, reading: readReport(data) };
    }
    return last.reading;
  };
}
