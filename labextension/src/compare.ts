/**
 * The button "Compare with…": beside each report in an output, and in the toolbar of each report that is a document.
 */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { showErrorMessage } from '@jupyterlab/apputils';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { DocumentWidget, MimeContent, type DocumentRegistry, type IDocumentWidget } from '@jupyterlab/docregistry';
import { INotebookTracker, type NotebookPanel } from '@jupyterlab/notebook';
import { ToolbarButton } from '@jupyterlab/ui-components';

import { html } from './dom';
import { FACTORY } from './files';
import { PairPane } from './pairpane';
import { othersOf, pickOther, placeOf, TITLE, type IOpen } from './picker';
import { ReportView } from './view';

const ABOUT = 'Lay another report beside this one';

export const compare: JupyterFrontEndPlugin<void> = {
  id: 'nbcompile:compare',
  description: 'Lays two reports of nbcompile side by side.',
  autoStart: true,
  requires: [IDocumentManager],
  optional: [INotebookTracker],
  activate: (app: JupyterFrontEnd, manager: IDocumentManager, notebooks: INotebookTracker | null): void => {
    const open = (): IOpen => whatIsOpen(app, notebooks);
    const start = async (view: ReportView, path: string | null): Promise<void> => {
      try {
        const other = await pickOther(othersOf(view.node, open(), path), manager);
        if (other !== null && !view.isDisposed) {
          PairPane.open(view, placeOf(view.node, open(), path), other);
        }
      } catch (error) {
        await showErrorMessage(TITLE, error instanceof Error ? error.message : String(error));
      }
    };
    app.docRegistry.addWidgetExtension(FACTORY, {
      createNew: (widget, context) => documentButton(widget as IDocumentWidget, view => start(view, context.path))
    });
    const known = new WeakSet<ReportView>();
    const look = (): void => {
      for (const view of ReportView.shown) {
        if (!known.has(view) && !(view.parent instanceof MimeContent)) {
          known.add(view);
          outputButton(view, () => start(view, null));
        }
      }
    };
    ReportView.shownChanged.connect(look);
    look();
  }
};

function whatIsOpen(app: JupyterFrontEnd, tracker: INotebookTracker | null): IOpen {
  const notebooks: NotebookPanel[] = [];
  tracker?.forEach(panel => notebooks.push(panel));
  const documents: DocumentRegistry.Context[] = [];
  for (const widget of app.shell.widgets('main')) {
    if (widget instanceof DocumentWidget) {
      documents.push(widget.context);
    }
  }
  return { documents, notebooks };
}

/** The button of a document's toolbar; it can be pressed while there is a report. */
function documentButton(
  { content, toolbar }: IDocumentWidget,
  press: (view: ReportView) => Promise<void>
): ToolbarButton {
  const view = content instanceof MimeContent && content.renderer instanceof ReportView ? content.renderer : null;
  const button = new ToolbarButton({
    label: TITLE,
    tooltip: ABOUT,
    enabled: false,
    onClick: () => {
      if (view !== null) {
        void press(view);
      }
    }
  });
  const update = (): void => {
    button.enabled = (view?.report ?? null) !== null;
  };
  view?.changed.connect(update);
  update();
  toolbar.addItem('nbcompile-compare', button);
  return button;
}

/** The button beside a report in an output; it is there while there is a report. */
function outputButton(view: ReportView, press: () => Promise<void>): void {
  const button = html(
    'button',
    {
      type: 'button',
      class: 'nbcompile-compare jp-mod-styled jp-mod-minimal',
      title: ABOUT,
      'data-lm-suppress-shortcuts': 'true'
    },
    TITLE
  );
  button.addEventListener('click', () => void press());
  const update = (): void => {
    button.hidden = view.report === null;
  };
  view.changed.connect(update);
  update();
  view.tools.append(button);
}
