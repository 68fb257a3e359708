/**
 * What a kernel has that a command can use: models, functions that run them, and whether nbcompile is loaded.
 *
 * The kernel is asked by an empty silent request whose answer is an expression's value: it leaves no trace in the
 * history, in `In` and `Out`, or among the user's variables. A kernel that is busy is not asked: it would answer when
 * its cell has ended.
 */
import type { ISessionContext } from '@jupyterlab/apputils';
import type { Kernel } from '@jupyterlab/services';

import { quoted } from './cells';

export interface IFoundModel {
  name: string;
  className: string;
  compiled: boolean;
  /** Whether the cell that was asked about uses it, itself or in a function that it calls. */
  used: boolean;
}

export interface IFoundStep {
  name: string;
  /** The models that the function names. */
  models: string[];
}

export interface IFound {
  loaded: boolean;
  models: IFoundModel[];
  steps: IFoundStep[];
}

/** What is known of a kernel: what it has, or why it could not be asked. */
export type Answer =
  { kind: 'found'; found: IFound } | { kind: 'unknown'; why: string } | { kind: 'unfit'; why: string };

// one expression, which binds no name among the user's
const ASK = "__import__('nbcompile.notebook.names', fromlist=['names']).names";

const NAME = /^[\p{L}_][\p{L}\p{N}_]*$/u;
const PATIENCE = 3000; // milliseconds; importing nbcompile takes a tenth of that, and no torch
const MOMENT = 600;
const MOST = 200;

/** Ask the kernel of a notebook, about a cell. Never throws, and never waits for a cell to end. */
export async function ask(session: ISessionContext, cell = ''): Promise<Answer> {
  const kernel = session.session?.kernel;
  if (!kernel) {
    return { kind: 'unknown', why: 'There is no kernel.' };
  }
  if (kernel.connectionStatus !== 'connected' || !(await idle(kernel))) {
    const busy = kernel.status === 'busy';
    return { kind: 'unknown', why: busy ? 'The kernel is busy.' : 'The kernel is not ready.' };
  }
  const content = await evaluate(kernel, `${ASK}(${quoted(cell)})`);
  if (content === null) {
    return { kind: 'unknown', why: 'The kernel does not answer.' };
  }
  return read(content);
}

/** What the kernel's answer says. It comes from a kernel, which may be any program. */
export function read(content: Readonly<Record<string, unknown>>): Answer {
  const answer = property(property(content, 'user_expressions'), 'names');
  const status = property(answer, 'status');
  if (status === 'error' && property(answer, 'ename') === 'ModuleNotFoundError') {
    return {
      kind: 'unfit',
      why: 'nbcompile is not installed where this kernel runs. Install it there, as by %pip install nbcompile.'
    };
  }
  const data = property(property(answer, 'data'), 'application/json');
  if (status !== 'ok' || !Array.isArray(property(data, 'models')) || !Array.isArray(property(data, 'steps'))) {
    const what = [property(answer, 'ename'), property(answer, 'evalue')].filter(part => typeof part === 'string');
    return {
      kind: 'unfit',
      why:
        'This kernel cannot be asked for its models: nbcompile needs a Python kernel with IPython' +
        (what.length > 0 ? ` (${what.join(': ').slice(0, 200)}).` : '.')
    };
  }
  const models = items(property(data, 'models')).map(item => ({
    name: text(item, 'name'),
    className: text(item, 'class_name'),
    compiled: property(item, 'compiled') === true,
    used: property(item, 'used') === true
  }));
  const steps = items(property(data, 'steps')).map(item => ({
    name: text(item, 'name'),
    models: items(property(item, 'models')).filter((name): name is string => typeof name === 'string')
  }));
  return {
    kind: 'found',
    found: {
      loaded: property(data, 'loaded') === true,
      models: models.filter(({ name }) => NAME.test(name)),
      steps: steps.filter(({ name }) => NAME.test(name))
    }
  };
}

/** Whether a kernel is idle, or soon: each message of a side bar makes it busy for a moment. */
async function idle(kernel: Kernel.IKernelConnection): Promise<boolean> {
  for (let waited = 0; kernel.status === 'busy' && waited < MOMENT; waited += 20) {
    await new Promise(resolve => window.setTimeout(resolve, 20));
  }
  return kernel.status === 'idle';
}

async function evaluate(
  kernel: Kernel.IKernelConnection,
  expression: string
): Promise<Readonly<Record<string, unknown>> | null> {
  const future = kernel.requestExecute({
    code: '',
    silent: true,
    store_history: false,
    user_expressions: { names: expression },
    allow_stdin: false,
    stop_on_error: false
  });
  let timer = 0;
  try {
    const late = new Promise<null>(resolve => {
      timer = window.setTimeout(() => {
        resolve(null);
      }, PATIENCE);
    });
    const reply = await Promise.race([future.done, late]);
    return reply === null ? null : { ...reply.content };
  } catch {
    return null; // the kernel has gone meanwhile
  } finally {
    window.clearTimeout(timer);
    future.done.catch(() => undefined); // of a future that is disposed before it is done
    future.dispose();
  }
}

function property(value: unknown, name: string): unknown {
  return typeof value === 'object' && value !== null && Object.prototype.hasOwnProperty.call(value, name)
    ? (value as Record<string, unknown>)[name]
    : undefined;
}

function text(value: unknown, name: string): string {
  const found = property(value, name);
  return typeof found === 'string' ? found : '';
}

function items(value: unknown): unknown[] {
  return Array.isArray(value) ? value.slice(0, MOST) : [];
}
