/**
 * Opens `.nbcompile.json` files as reports. The text stays as it is; Lab's editor and its JSON tree can open it too.
 */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { MimeDocumentFactory } from '@jupyterlab/docregistry';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';

import { FILE_ENDING, MIME_TYPE } from './mime';
import { rendererFactory } from './renderer';

const FILE_TYPE = 'nbcompile-report';

/** What opens these files, by the name that users see. */
export const FACTORY = 'Report of nbcompile';

export const files: JupyterFrontEndPlugin<void> = {
  id: 'nbcompile:files',
  description: 'Opens saved reports of nbcompile from the file browser.',
  autoStart: true,
  requires: [IRenderMimeRegistry],
  activate: (app: JupyterFrontEnd, registry: IRenderMimeRegistry): void => {
    app.docRegistry.addFileType({
      name: FILE_TYPE,
      displayName: 'Report of nbcompile',
      extensions: [FILE_ENDING],
      mimeTypes: [MIME_TYPE],
      contentType: 'file',
      fileFormat: 'text'
    });
    // a registry of its own: files can be opened where the plugin that draws outputs is disabled
    const rendermime = registry.clone();
    rendermime.addFactory(rendererFactory, 0);
    app.docRegistry.addWidgetFactory(
      new MimeDocumentFactory({
        name: FACTORY,
        primaryFileType: app.docRegistry.getFileType(FILE_TYPE),
        fileTypes: [FILE_TYPE],
        defaultFor: [FILE_TYPE],
        defaultRendered: [FILE_TYPE],
        dataType: 'string', // read by the renderer, which tells what is wrong with a broken file
        rendermime
      })
    );
  }
};
