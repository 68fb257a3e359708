/**
 * Draws the report wherever Lab shows data of its MIME type: notebooks, consoles, documents. No kernel is asked.
 */
import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';

import { MIME_TYPE } from './mime';
import { ReportView } from './view';

export const rendererFactory: IRenderMime.IRendererFactory = {
  safe: true, // shown in notebooks that are not trusted too: all text is set as text, nothing is run
  mimeTypes: [MIME_TYPE],
  createRenderer: options => new ReportView(options.mimeType)
};

export const renderer: JupyterFrontEndPlugin<void> = {
  id: 'nbcompile:renderer',
  description: 'Draws reports of nbcompile in outputs.',
  autoStart: true,
  requires: [IRenderMimeRegistry],
  activate: (_app: JupyterFrontEnd, registry: IRenderMimeRegistry): void => {
    registry.addFactory(rendererFactory, 0); // before text/html and Plotly, which are in the same output
  }
};
