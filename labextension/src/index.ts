/**
 * The plugins of this extension. Each does one thing and can be disabled alone, by its id.
 */
import type { JupyterFrontEndPlugin } from '@jupyterlab/application';

import { compare } from './compare';
import { current } from './current';
import { files } from './files';
import { renderer } from './renderer';
import { sidebar } from './sidebar';
import { status } from './status';

const plugins: JupyterFrontEndPlugin<unknown>[] = [renderer, files, compare, current, status, sidebar];

export default plugins;
