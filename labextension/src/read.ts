/**
 * Reads a report: untrusted JSON into typed data. Never throws.
 *
 * A figure that is no amount (negative, not finite, absurd) is absent, text is cut to a length that can be shown, lists
 * to a number that can be drawn. What was left out or could not be read is told in `leftOut` and `unread`.
 */
import {
  SCHEMA,
  type Figure,
  type IGroup,
  type IRank,
  type IRecompile,
  type IReport,
  type IRest,
  type ISnapshot,
  type IStrategy,
  type ITrial
} from './report';
import { nameOf } from './trials';
import { amount, clean, type Plain } from './units';

const OUTCOMES = ['measured', 'failed', 'wrong', 'skipped', 'stopped'];

const MOST_ITEMS = 20_000;
const MOST_TRIALS = 256;
const MOST_KEYS = 200;
const MOST_DEPTH = 8;
const MOST_TOLD = 20;
const LONGEST_TEXT = 8000;
const LONGEST_NAME = 300;

/** What can be made of data: a report, or a sentence that says why it is none. */
export type Reading = { report: IReport; problem?: undefined } | { report?: undefined; problem: string };

/** Read a report from an output's data or a file's text. */
export function readReport(data: unknown): Reading {
  let value = data;
  if (typeof data === 'string') {
    try {
      value = JSON.parse(data);
    } catch (error) {
      const why = clean(error instanceof Error ? error.message : String(error), 120);
      return { problem: `This report cannot be read: it is not valid JSON (${why}).` };
    }
  }
  if (!isObject(value)) {
    return { problem: `This is no report: expected a JSON object, found ${kindOf(value)}.` };
  }
  const schema = own(value, 'schema');
  if (schema !== SCHEMA) {
    const named = clean(toPlain(schema, 0), 40);
    return {
      problem:
        `This report has ${schema === undefined ? 'no schema' : `schema ${named}`}; this version of nbcompile reads ` +
        `schema ${SCHEMA}. A newer nbcompile may be able to read it.`
    };
  }
  return { report: new Reader().report(value) };
}

type Json = Record<string, unknown>;

class Reader {
  private readonly leftOut: string[] = [];
  private readonly unread: string[] = [];
  private more = 0;

  report(value: Json): IReport {
    const report: IReport = {
      created: this.text(value, 'created'),
      environment: this.plain(value, 'environment'),
      model: this.plain(value, 'model'),
      settings: this.plain(value, 'settings'),
      groups: this.list(value, 'groups', '', (item, where) => this.group(item, where)),
      rest: this.list(value, 'rest', '', (item, where) => this.rest(item, where)),
      strategies: new Map(),
      tuning: this.list(value, 'tuning', '', (item, where) => this.trial(item, where), MOST_TRIALS),
      ranks: this.list(value, 'ranks', '', (item, where) => this.rank(item, where)),
      notes: this.texts(value, 'notes'),
      progress: null,
      leftOut: this.leftOut,
      unread: this.unread
    };
    for (const [name, item] of this.entries(value, 'strategies')) {
      if (isObject(item)) {
        report.strategies.set(cut(name), this.strategy(item, `strategies.${clean(name, 40)}`));
      } else {
        this.misfit(`strategies.${clean(name, 40)}`, 'an object', item);
      }
    }
    const progress = own(value, 'progress');
    if (isObject(progress)) {
      report.progress = this.snapshot(progress);
    } else if (progress !== undefined && progress !== null) {
      this.misfit('progress', 'an object', progress);
    }
    if (this.more > 0) {
      this.unread.push(`and ${this.more} more like these`);
    }
    return report;
  }

  private group(value: Json, where: string): IGroup {
    return {
      path: this.text(value, 'path', where),
      className: this.text(value, 'class_name', where),
      instances: this.figure(value, 'instances', where),
      compiled: this.figure(value, 'compiled', where, 0),
      eager: this.figure(value, 'eager', where, 0),
      variants: this.list(value, 'variants', where, (item, at) => ({
        name: this.text(item, 'name', at),
        instances: this.figure(item, 'instances', at),
        graphs: this.figure(item, 'graphs', at, 0),
        compileSeconds: this.figure(item, 'compile_seconds', at, 0),
        dynamic: this.texts(item, 'dynamic', at)
      })),
      compileSeconds: this.figure(value, 'compile_seconds', where, 0),
      recompiles: this.recompiles(value, where),
      graphBreaks: this.list(value, 'graph_breaks', where, (item, at) => ({
        block: this.text(item, 'block', at),
        reason: this.text(item, 'reason', at),
        location: this.text(item, 'location', at),
        remedy: this.text(item, 'remedy', at)
      })),
      phases: this.phases(value, where),
      reason: this.text(value, 'reason', where),
      graphs: this.figure(value, 'graphs', where, 0),
      eagerReason: this.text(value, 'eager_reason', where),
      failure: this.text(value, 'failure', where)
    };
  }

  private recompiles(value: Json, where: string): IRecompile[] {
    return this.list(value, 'recompiles', where, (item, at) => ({
      block: this.text(item, 'block', at),
      reason: this.text(item, 'reason', at),
      guard: this.text(item, 'guard', at),
      seconds: this.figure(item, 'seconds', at),
      old: this.text(item, 'old', at),
      new: this.text(item, 'new', at),
      remedy: this.text(item, 'remedy', at),
      caller: this.text(item, 'caller', at)
    }));
  }

  private rank(value: Json, where: string): IRank {
    return {
      rank: this.figure(value, 'rank', where),
      host: this.text(value, 'host', where),
      instances: this.figure(value, 'instances', where, 0),
      compiled: this.figure(value, 'compiled', where, 0),
      eager: this.figure(value, 'eager', where, 0),
      graphs: this.figure(value, 'graphs', where, 0),
      compileSeconds: this.figure(value, 'compile_seconds', where),
      backwardSeconds: this.figure(value, 'backward_seconds', where),
      recompiles: this.recompiles(value, where)
    };
  }

  private rest(value: Json, where: string): IRest {
    return {
      path: this.text(value, 'path', where),
      className: this.text(value, 'class_name', where),
      decision: this.text(value, 'decision', where),
      reason: this.text(value, 'reason', where),
      compiled: this.flag(value, 'compiled', where),
      compileSeconds: this.figure(value, 'compile_seconds', where, 0),
      phases: this.phases(value, where),
      graphs: this.figure(value, 'graphs', where, 0)
    };
  }

  private strategy(value: Json, where: string): IStrategy {
    return {
      coldSeconds: this.figure(value, 'cold_seconds', where),
      coldRepeats: this.figure(value, 'cold_repeats', where, 0),
      steadySeconds: this.figure(value, 'steady_seconds', where),
      steadySpread: this.figure(value, 'steady_spread', where),
      steadyRepeats: this.figure(value, 'steady_repeats', where, 0),
      steadyRatio: this.figure(value, 'steady_ratio', where),
      steadyRatioLow: this.figure(value, 'steady_ratio_low', where),
      steadyRatioHigh: this.figure(value, 'steady_ratio_high', where),
      dispatchSeconds: this.figure(value, 'dispatch_seconds', where),
      dispatchCalls: this.figure(value, 'dispatch_calls', where),
      peakBytes: this.figure(value, 'peak_bytes', where),
      maxAbsDiff: this.figure(value, 'max_abs_diff', where),
      breakEvenCalls: this.figure(value, 'break_even_calls', where),
      graphs: this.figure(value, 'graphs', where),
      regions: this.list(value, 'regions', where, (item, at) => ({
        path: this.text(item, 'path', at),
        className: this.text(item, 'class_name', at),
        seconds: this.figure(item, 'seconds', at),
        phases: this.phases(item, at),
        graphs: this.figure(item, 'graphs', at, 0)
      })),
      checks: this.list(value, 'checks', where, (item, at) => ({
        block: this.text(item, 'block', at),
        className: this.text(item, 'class_name', at),
        maxAbsDiff: this.figure(item, 'max_abs_diff', at),
        maxAbsGradDiff: this.figure(item, 'max_abs_grad_diff', at),
        largest: this.figure(item, 'largest', at),
        drifts: this.flag(item, 'drifts', at),
        note: this.text(item, 'note', at)
      })),
      firstDrift: this.text(value, 'first_drift', where),
      failure: this.text(value, 'failure', where),
      notes: this.texts(value, 'notes', where)
    };
  }

  private trial(value: Json, where: string): ITrial | null {
    const settings = this.plain(value, 'settings', where);
    const strategy = settings.get('strategy');
    const outcome = this.text(value, 'outcome', where) || 'measured';
    if (typeof strategy !== 'string' || !OUTCOMES.includes(outcome)) {
      this.tell(
        `${where}: ${typeof strategy !== 'string' ? 'the strategy is missing' : `there is no outcome ${clean(outcome, 40)}`}`
      );
      return null;
    }
    const figures = own(value, 'figures');
    return {
      strategy: cut(strategy, LONGEST_NAME),
      name: nameOf(cut(strategy, LONGEST_NAME), settings),
      figures: this.strategy(isObject(figures) ? figures : {}, `${where}.figures`),
      outcome,
      reason: this.text(value, 'reason', where)
    };
  }

  private snapshot(value: Json): ISnapshot {
    const where = 'progress';
    return {
      stage: this.text(value, 'stage', where),
      region: this.text(value, 'region', where),
      className: this.text(value, 'class_name', where),
      phase: this.text(value, 'phase', where),
      elapsedSeconds: this.figure(value, 'elapsed_seconds', where),
      lastSeconds: this.figure(value, 'last_seconds', where),
      remainingSeconds: this.figure(value, 'remaining_seconds', where),
      done: this.figure(value, 'done', where),
      expected: this.figure(value, 'expected', where),
      atLeast: this.flag(value, 'at_least', where),
      unit: this.text(value, 'unit', where)
    };
  }

  private phases(value: Json, where: string): Map<string, number> {
    const found = new Map<string, number>();
    for (const [name, item] of this.entries(value, 'phases', where)) {
      const taken = amount(item);
      if (taken !== null) {
        found.set(cut(name, LONGEST_NAME), taken);
      }
    }
    return found;
  }

  private text(value: Json, name: string, where = ''): string {
    const found = own(value, name);
    if (typeof found === 'string') {
      return cut(found);
    }
    if (found !== undefined && found !== null) {
      this.misfit(join(where, name), 'text', found);
    }
    return '';
  }

  private texts(value: Json, name: string, where = ''): string[] {
    return this.items(value, name, where, MOST_ITEMS).flatMap((item, index) => {
      if (typeof item === 'string') {
        return [cut(item)];
      }
      this.misfit(`${join(where, name)}[${index}]`, 'text', item);
      return [];
    });
  }

  /** An amount; `missing` where there is none at all. What is there and is no amount is absent. */
  private figure(value: Json, name: string, where: string, missing: Figure = null): Figure {
    const found = own(value, name);
    if (found === undefined) {
      return missing;
    }
    if (found !== null && typeof found !== 'number') {
      this.misfit(join(where, name), 'a number', found);
    }
    return amount(found);
  }

  private flag(value: Json, name: string, where: string): boolean {
    const found = own(value, name);
    if (found !== undefined && typeof found !== 'boolean') {
      this.misfit(join(where, name), 'true or false', found);
    }
    return found === true;
  }

  private plain(value: Json, name: string, where = ''): Map<string, Plain> {
    return new Map(this.entries(value, name, where).map(([key, item]) => [cut(key, LONGEST_NAME), toPlain(item, 0)]));
  }

  private list<T>(
    value: Json,
    name: string,
    where: string,
    read: (item: Json, where: string) => T | null,
    most = MOST_ITEMS
  ): T[] {
    return this.items(value, name, where, most).flatMap((item, index) => {
      const at = `${join(where, name)}[${index}]`;
      if (isObject(item)) {
        const built = read(item, at);
        return built === null ? [] : [built];
      }
      this.misfit(at, 'an object', item);
      return [];
    });
  }

  private items(value: Json, name: string, where: string, most: number): unknown[] {
    const found = own(value, name);
    if (!Array.isArray(found)) {
      if (found !== undefined && found !== null) {
        this.misfit(join(where, name), 'a list', found);
      }
      return [];
    }
    if (found.length > most && this.leftOut.length < MOST_TOLD) {
      this.leftOut.push(`${join(where, name)}: ${most} are shown, and there are ${found.length - most} more`);
    }
    return found.slice(0, most);
  }

  private entries(value: Json, name: string, where = ''): [string, unknown][] {
    const found = own(value, name);
    if (!isObject(found)) {
      if (found !== undefined && found !== null) {
        this.misfit(join(where, name), 'an object', found);
      }
      return [];
    }
    const every = entriesOf(found);
    if (every.length > MOST_KEYS && this.leftOut.length < MOST_TOLD) {
      this.leftOut.push(`${join(where, name)}: ${MOST_KEYS} are shown, and there are ${every.length - MOST_KEYS} more`);
    }
    return every.slice(0, MOST_KEYS);
  }

  private misfit(where: string, expected: string, found: unknown): void {
    this.tell(`${where}: expected ${expected}, found ${kindOf(found)}`);
  }

  private tell(words: string): void {
    if (this.unread.length < MOST_TOLD) {
      this.unread.push(words);
    } else {
      this.more += 1;
    }
  }
}

function join(where: string, name: string): string {
  return where ? `${where}.${name}` : name;
}

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/** A field of its own; never one that every object has. */
function own(value: Json, name: string): unknown {
  return Object.prototype.hasOwnProperty.call(value, name) ? value[name] : undefined;
}

/** An object's fields, without those that would reach its prototype. */
function entriesOf(value: Json): [string, unknown][] {
  return Object.keys(value)
    .filter(key => key !== '__proto__' && key !== 'constructor' && key !== 'prototype')
    .map(key => [key, value[key]]);
}

function cut(text: string, most = LONGEST_TEXT): string {
  // both ends of a long text are kept: a compiler's message begins, and a path ends, with what matters
  return text.length <= most ? text : `${text.slice(0, (most * 7) >> 3)} ${text.slice(-(most >> 3))}`;
}

function toPlain(value: unknown, depth: number): Plain {
  if (value === null || typeof value === 'boolean' || typeof value === 'number') {
    return value;
  }
  if (typeof value === 'string') {
    return cut(value);
  }
  if (depth >= MOST_DEPTH) {
    return '…';
  }
  if (Array.isArray(value)) {
    return value.slice(0, MOST_KEYS).map(item => toPlain(item, depth + 1));
  }
  if (isObject(value)) {
    return new Map(
      entriesOf(value)
        .slice(0, MOST_KEYS)
        .map(([key, item]) => [cut(key, LONGEST_NAME), toPlain(item, depth + 1)])
    );
  }
  return null;
}

function kindOf(value: unknown): string {
  if (value === null || value === undefined) {
    return 'nothing';
  }
  if (Array.isArray(value)) {
    return 'a list';
  }
  const names: Record<string, string> = { string: 'text', number: 'a number', boolean: 'true or false' };
  return names[typeof value] ?? 'an object';
}
