/**
 * The plugins of this extension. Each does one thing and can be disabled alone, by its id.
 */
import type { JupyterFrontEndPlugin } from '@jupyterlab/application';

import { compare } from './compare';
import { files } from './files';
import { renderer } from './renderer';

const plugins: JupyterFrontEndPlugin<unknown>[] = [renderer, files, compare];

export default plugins;
