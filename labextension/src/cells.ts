/**
 * The text of the cells that the commands write. No page, no kernel: names and settings in, cells out.
 *
 * A cell runs as it is, so the extension of IPython is loaded by it where the kernel has not loaded it. A cell magic
 * has to be a cell's first line, and gets a cell above it for that.
 */

/** What the user has set as defaults; an empty text or "auto" leaves it to the kernel's side. */
export interface IDefaults {
  strategies: readonly string[];
  backend: string;
  mode: string;
  dynamic: string;
  fullgraph: boolean;
  rest: string;
  rounds: number;
  calls: number;
  budget: number;
}

/** What is the case in the kernel. */
export interface INames {
  /** An expression that gives the model. */
  model: string;
  /** An expression that gives a function that runs the model once; empty if there is none. */
  step: string;
  /** Whether `%load_ext nbcompile` has been run. */
  loaded: boolean;
}

/** Cells to write: the source of one, and of a cell above it if one is needed. */
export interface ICells {
  above: string | null;
  source: string;
}

export const LOAD = '%load_ext nbcompile';

export const DEFAULTS: IDefaults = {
  strategies: ['eager', 'regional', 'full'],
  backend: '',
  mode: '',
  dynamic: 'auto',
  fullgraph: false,
  rest: 'auto',
  rounds: 5,
  calls: 1000,
  budget: 180
};

const STRATEGIES = ['eager', 'regional', 'full', 'hierarchical'];
const DYNAMIC = ['auto', 'true', 'false'];
const REST = ['auto', 'compile', 'eager'];

/** Settings as they are read from a file: what is not as it has to be is the default. */
export function readDefaults(settings: Readonly<Record<string, unknown>>): IDefaults {
  const text = (name: string): string => {
    const value = settings[name];
    return typeof value === 'string' ? value.trim() : '';
  };
  const choice = (name: string, among: readonly string[]): string => (among.includes(text(name)) ? text(name) : 'auto');
  const number = (name: 'rounds' | 'calls' | 'budget', whole: boolean): number => {
    const value = settings[name];
    const right = typeof value === 'number' && Number.isFinite(value) && value > 0;
    return right && (!whole || Number.isInteger(value)) ? value : DEFAULTS[name];
  };
  const named = text('strategies').split(/[\s,]+/);
  const strategies = STRATEGIES.filter(name => named.includes(name));
  return {
    strategies: strategies.length > 0 ? strategies : DEFAULTS.strategies,
    backend: text('backend'),
    mode: text('mode'),
    dynamic: choice('dynamic', DYNAMIC),
    fullgraph: settings['fullgraph'] === true,
    rest: choice('rest', REST),
    rounds: number('rounds', true),
    calls: number('calls', true),
    budget: number('budget', false)
  };
}

/** A cell as a step of `%%compile_regional`: it is compiled, run, and compared with what is set. */
export function stepCell(body: string, names: INames, defaults: IDefaults): ICells {
  const beside = defaults.strategies.filter(name => name !== 'regional');
  const words = ['%%compile_regional', word(names.model)];
  words.push(...option('--backend', defaults.backend), ...option('--mode', defaults.mode));
  words.push(...option('--dynamic', defaults.dynamic === 'auto' ? '' : defaults.dynamic));
  words.push(...(defaults.fullgraph ? ['--fullgraph'] : []));
  words.push(...option('--rest', defaults.rest === 'auto' ? '' : defaults.rest));
  words.push('--compare', beside.length > 0 ? beside.join(',') : 'none');
  words.push(...(defaults.rounds === DEFAULTS.rounds ? [] : ['-r', String(defaults.rounds)]));
  return { above: names.loaded ? null : LOAD, source: `${words.join(' ')}\n${body}` };
}

/** Compile block by block, run once if it is known how, and show what was compiled. */
export function compileCell(names: INames, defaults: IDefaults): ICells {
  const call = `nbcompile.compile_regions(${[names.model, ...keywords(defaults, true)].join(', ')})`;
  const lines = names.step
    ? [call, `${called(names.step)}()  # the first call compiles`, `nbcompile.report(${names.model})`]
    : [`${call};  # compiles at the next call of the model`]; // the semicolon: the model is not shown
  return python(names, lines);
}

/** Measure strategies side by side. */
export function compareCell(names: INames, defaults: IDefaults): ICells {
  const strategies = `[${defaults.strategies.map(quoted).join(', ')}]`;
  const rounds = defaults.rounds === DEFAULTS.rounds ? [] : [`rounds=${defaults.rounds}`];
  const settings = [...keywords(defaults, defaults.strategies.includes('regional')), ...rounds];
  return python(names, [`nbcompile.compare(${[names.model, names.step, strategies, ...settings].join(', ')})`]);
}

/** Look for the best setting for a number of calls. */
export function tuneCell(names: INames, defaults: IDefaults): ICells {
  const settings = [`calls=${defaults.calls}`, `budget=${defaults.budget}`];
  if (defaults.backend) {
    settings.push(`space={"backend": [${quoted(defaults.backend)}]}`);
  }
  return python(names, [`nbcompile.tune(${[names.model, names.step, ...settings].join(', ')})`]);
}

/** Controls for all of it. */
export function panelCell(names: INames): ICells {
  const step = names.step ? [word(names.step)] : [];
  return magic(names, ['%nbcompile panel', word(names.model), ...step]);
}

/** Which parts would be compiled, and why. */
export function planCell(names: INames, defaults: IDefaults): ICells {
  return magic(names, [
    '%nbcompile plan',
    word(names.model),
    ...option('--rest', defaults.rest === 'auto' ? '' : defaults.rest)
  ]);
}

/** As if never compiled. */
export function restoreCell(names: INames): ICells {
  return magic(names, ['%nbcompile restore', word(names.model)]);
}

/** Why a cell cannot be made a step; null if it can. */
export function obstacle(source: string): string | null {
  const first = source.split('\n').find(line => line.trim() !== '');
  if (first === undefined) {
    return 'This cell is empty. Write in it what runs the model once, such as out = model(x), and compile that.';
  }
  const named = /^\s*(%%[\w.]+)/.exec(first)?.[1];
  if (named === '%%compile_regional' || named === '%%tune') {
    return `This cell is a ${named} cell already. Run it as it is.`;
  }
  if (named !== undefined) {
    return (
      `This cell begins with ${named}, and a cell can have only one cell magic. Take it away, or choose the cell that ` +
      'runs the model.'
    );
  }
  return null;
}

/** Those of the names that are words of a cell's source. Strings and comments may hold one too: it is a guess. */
export function usedIn(source: string, names: readonly string[]): string[] {
  const words = new Set(source.match(/(?<![\p{L}\p{N}_.])[\p{L}_][\p{L}\p{N}_]*/gu));
  return names.filter(name => words.has(name));
}

/** A text as a literal of Python: JSON's strings are such. */
export function quoted(text: string): string {
  return JSON.stringify(text);
}

/**
 * A text as one argument of a magic's line.
 *
 * IPython splits the line at spaces outside of quotes, knows no escapes, and nbcompile takes one pair of quotes away.
 */
export function word(text: string): string {
  const line = text.replace(/[\r\n\u2028\u2029]+/g, ' ').trim();
  if (/^[\p{L}\p{N}_][\p{L}\p{N}_.,:/+-]*$/u.test(line)) {
    return line;
  }
  if (!line.includes("'")) {
    return `'${line}'`;
  }
  if (!line.includes('"')) {
    return `"${line}"`;
  }
  throw new Error(`${line} has both kinds of quotes, which the line of a magic cannot hold. Give it a name first.`);
}

function option(name: string, value: string): string[] {
  return value ? [name, word(value)] : [];
}

function keywords(defaults: IDefaults, regional: boolean): string[] {
  const found: string[] = [];
  if (defaults.backend) {
    found.push(`backend=${quoted(defaults.backend)}`);
  }
  if (defaults.mode) {
    found.push(`mode=${quoted(defaults.mode)}`);
  }
  if (defaults.dynamic !== 'auto') {
    found.push(`dynamic=${defaults.dynamic === 'true' ? 'True' : 'False'}`);
  }
  if (defaults.fullgraph) {
    found.push('fullgraph=True');
  }
  if (regional && defaults.rest !== 'auto') {
    found.push(`rest=${quoted(defaults.rest)}`);
  }
  return found;
}

/** An expression, so that it can be called. */
function called(step: string): string {
  return /^[\p{L}\p{N}_.]+$/u.test(step) ? step : `(${step})`;
}

function python(names: INames, lines: readonly string[]): ICells {
  const load = names.loaded ? [] : [LOAD];
  return { above: null, source: [...load, 'import nbcompile', '', ...lines].join('\n') };
}

function magic(names: INames, words: readonly string[]): ICells {
  const load = names.loaded ? [] : [LOAD];
  return { above: null, source: [...load, words.join(' ')].join('\n') };
}
