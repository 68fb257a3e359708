/**
 * The plugins of this extension. Each does one thing and can be disabled alone, by its id.
 */
import type { JupyterFrontEndPlugin } from '@jupyterlab/application';

import { commands } from './commands';
import { files } from './files';
import { marks } from './marks';
import { renderer } from './renderer';

const plugins: JupyterFrontEndPlugin<unknown>[] = [renderer, files, commands, marks];

export default plugins;
