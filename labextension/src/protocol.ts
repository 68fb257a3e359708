/**
 * What the kernel tells: the answers of nbcompile/notebook/bridge.py, checked. The user's own code runs in that kernel
 * and could send anything, and another version of the package something else: text stays text, and what is not as it
 * should be is absent.
 */
import { amount, clean } from './units';

/** The comm's target, and the version of questions and answers that this extension speaks. */
export const TARGET = 'nbcompile';
export const PROTOCOL = 1;

/** A long piece of work that goes on in the kernel. */
export interface IWork {
  kind: string;
  strategy: string;
  stage: string;
  region: string;
  phase: string;
  elapsedSeconds: number | null;
  remainingSeconds: number | null;
  totalSeconds: number | null;
  done: number | null;
  expected: number | null;
  atLeast: boolean;
  unit: string;
}

/** How the regions of a model ran that is compiled or being compiled. */
export interface ICompiled {
  strategy: string;
  backend: string;
  mode: string;
  dynamic: boolean | null;
  rest: string;
  compiled: number;
  eager: number;
  pending: number;
  seconds: number | null;
  recompiles: number;
}

export interface IStatus {
  busy: boolean;
  timing: boolean;
  work: IWork | null;
  model: ICompiled | null;
  /** What was asked for and waits for the running cell. */
  waiting: string[];
  /** Another number whenever other models may be there, or be compiled. */
  revision: number;
}

/** A value of a setting; `reason` says why it is not to be had here, empty if it is. */
export interface IOffer {
  value: string;
  label: string;
  reason: string;
  /** Of a backend: whether it has modes. */
  modes: boolean;
}

export type Setting = 'strategies' | 'backends' | 'modes' | 'dynamic' | 'rest';

export interface IModel {
  name: string;
  className: string;
  parameters: number | null;
  dtype: string;
  device: string;
  compiled: ICompiled | null;
  groups: { path: string; className: string; count: number | null }[];
  rest: { path: string; className: string; decision: string; reason: string }[];
  /** Why nothing can be compiled block by block. */
  reason: string;
  offers: Record<Setting, IOffer[]>;
}

export interface IModels {
  models: IModel[];
  /** How many more there are. */
  more: number;
  /** Whether the list is from before the running cell. */
  stale: boolean;
}

const MOST = 200;

export function readStatus(data: unknown): IStatus {
  const value = new Fields(data);
  return {
    busy: value.flag('busy'),
    timing: value.flag('timing'),
    work: value.maybe('work', readWork),
    model: value.maybe('model', readCompiled),
    waiting: value.list('waiting', item => (typeof item === 'string' ? clean(item) : '')),
    revision: value.figure('revision') ?? 0
  };
}

export function readModels(data: unknown): IModels {
  const value = new Fields(data);
  return {
    models: value.list('models', item => readModel(item)),
    more: value.figure('more') ?? 0,
    stale: value.flag('stale')
  };
}

export function readModel(data: unknown): IModel {
  const value = new Fields(data);
  const offers = new Fields(value.any('offers'));
  const of = (setting: Setting): IOffer[] => offers.list(setting, readOffer);
  return {
    name: value.text('name'),
    className: value.text('class_name'),
    parameters: value.figure('parameters'),
    dtype: value.text('dtype'),
    device: value.text('device'),
    compiled: value.maybe('compiled', readCompiled),
    groups: value.list('groups', item => {
      const group = new Fields(item);
      return { path: group.text('path'), className: group.text('class_name'), count: group.figure('count') };
    }),
    rest: value.list('rest', item => {
      const part = new Fields(item);
      return {
        path: part.text('path'),
        className: part.text('class_name'),
        decision: part.text('decision'),
        reason: part.text('reason')
      };
    }),
    reason: value.text('reason'),
    offers: {
      strategies: of('strategies'),
      backends: of('backends'),
      modes: of('modes'),
      dynamic: of('dynamic'),
      rest: of('rest')
    }
  };
}

/** The text under a name in an answer, for a message. */
export function readText(data: unknown, name: string): string {
  return new Fields(data).text(name);
}

/** The figure under a name in an answer. */
export function readFigure(data: unknown, name: string): number | null {
  return new Fields(data).figure(name);
}

/** What is under a name in a message, still unchecked. */
export function readAny(data: unknown, name: string): unknown {
  return new Fields(data).any(name);
}

function readWork(data: unknown): IWork {
  const value = new Fields(data);
  return {
    kind: value.text('kind'),
    strategy: value.text('strategy'),
    stage: value.text('stage'),
    region: value.text('region'),
    phase: value.text('phase'),
    elapsedSeconds: value.figure('elapsed_seconds'),
    remainingSeconds: value.figure('remaining_seconds'),
    totalSeconds: value.figure('total_seconds'),
    done: value.figure('done'),
    expected: value.figure('expected'),
    atLeast: value.flag('at_least'),
    unit: value.text('unit')
  };
}

function readCompiled(data: unknown): ICompiled {
  const value = new Fields(data);
  const dynamic = value.any('dynamic');
  return {
    strategy: value.text('strategy'),
    backend: value.text('backend'),
    mode: value.text('mode') || 'default',
    dynamic: typeof dynamic === 'boolean' ? dynamic : null,
    rest: value.text('rest') || 'auto',
    compiled: value.figure('compiled') ?? 0,
    eager: value.figure('eager') ?? 0,
    pending: value.figure('pending') ?? 0,
    seconds: value.figure('seconds'),
    recompiles: value.figure('recompiles') ?? 0
  };
}

function readOffer(data: unknown): IOffer {
  const value = new Fields(data);
  return {
    value: value.text('value'),
    label: value.text('label'),
    reason: value.text('reason'),
    modes: value.flag('modes')
  };
}

/** The fields of a JSON object, by its own keys alone; of anything else there are none. */
class Fields {
  private readonly value: object;

  constructor(data: unknown) {
    this.value = typeof data === 'object' && data !== null ? data : {};
  }

  any(name: string): unknown {
    return Object.hasOwn(this.value, name) ? (this.value as Record<string, unknown>)[name] : undefined;
  }

  text(name: string): string {
    const found = this.any(name);
    return typeof found === 'string' ? clean(found) : '';
  }

  figure(name: string): number | null {
    return amount(this.any(name));
  }

  flag(name: string): boolean {
    return this.any(name) === true;
  }

  maybe<T>(name: string, read: (data: unknown) => T): T | null {
    const found = this.any(name);
    return typeof found === 'object' && found !== null ? read(found) : null;
  }

  list<T>(name: string, read: (item: unknown) => T): T[] {
    const found = this.any(name);
    return Array.isArray(found) ? found.slice(0, MOST).map(read) : [];
  }
}
