/**
 * The plugins of this extension. Each does one thing and can be disabled alone, by its id.
 */
import type { JupyterFrontEndPlugin } from '@jupyterlab/application';

import { commands } from './commands';
import { compare } from './compare';
import { current } from './current';
import { files } from './files';
import { marks } from './marks';
import { renderer } from './renderer';
import { sidebar } from './sidebar';
import { status } from './status';

const plugins: JupyterFrontEndPlugin<unknown>[] = [renderer, files, compare, commands, marks, current, status, sidebar];

export default plugins;
