/**
 * What the kernel's state is in words: for the status bar, the side bar and their tests.
 */
import type { LinkState } from './kernel';
import type { ICompiled, IStatus, IWork } from './protocol';
import { PHASE_TITLES } from './report';
import { clock, count, middle, plural, seconds } from './units';

const SEPARATOR = ' · ';
const LONGEST_PATH = 40;

/** The line for the status bar; empty where there is nothing to say. */
export function statusLine(status: IStatus): string {
  const { work, model } = status;
  if (work !== null) {
    const about = model !== null && work.strategy === model.strategy ? model : null;
    const first = work.strategy || (work.stage.split(':')[0] ?? '') || work.kind;
    return joined([first, about?.backend, doneOf(work, about), clock(work.totalSeconds), recompiles(about)]);
  }
  if (model === null) {
    return 'nbcompile: nothing compiled';
  }
  const time = model.seconds === null || model.seconds === 0 ? '' : seconds(model.seconds);
  return joined([model.strategy, model.backend, regions(model), time, recompiles(model)]);
}

/** What a piece of work is at: `regional: cold start (compiling), layers.3, kernel compile`. */
export function workLine(work: IWork): string {
  const phase = work.phase === 'backend' ? 'Backend' : (PHASE_TITLES.get(work.phase) ?? work.phase);
  return joined([work.stage || work.kind, middle(work.region, LONGEST_PATH), phase]);
}

/** How much is done, of how much, for a bar; null where the end is not known. */
export function workShare(status: IStatus): { done: number; of: number } | null {
  const { work, model } = status;
  if (work === null) {
    return null;
  }
  if (work.unit !== 'rounds' && model !== null && work.strategy === model.strategy) {
    const done = model.compiled + model.eager;
    return { done, of: done + model.pending };
  }
  return work.done !== null && work.expected !== null && work.expected > 0
    ? { done: Math.min(work.done, work.expected), of: work.expected }
    : null;
}

/** How far it is and how long it may take. */
export function workTimes(work: IWork): string {
  const left = work.remainingSeconds === null ? '' : `about ${clock(work.remainingSeconds)} left`;
  const whole =
    work.totalSeconds !== null && work.elapsedSeconds !== null && work.totalSeconds - work.elapsedSeconds > 1;
  return joined([
    counted(work),
    work.elapsedSeconds === null ? '' : clock(work.elapsedSeconds),
    left,
    whole ? `${clock(work.totalSeconds)} in all` : ''
  ]);
}

/** A model's compilation: `regional, inductor, max-autotune: 12 of 12 regions compiled in 8.1 s, 1 recompile`. */
export function compiledLine(compiled: ICompiled): string {
  const settings = [compiled.strategy, compiled.backend];
  if (compiled.mode !== 'default') {
    settings.push(compiled.mode);
  }
  if (compiled.dynamic !== null) {
    settings.push(`dynamic ${String(compiled.dynamic)}`);
  }
  const all = compiled.compiled + compiled.eager + compiled.pending;
  if (compiled.pending === all) {
    return `${settings.join(', ')}: compiles at the next call`;
  }
  const parts = [`${count(compiled.compiled)} of ${plural(all, 'region')} compiled`];
  if (compiled.seconds) {
    parts[0] += ` in ${seconds(compiled.seconds)}`;
  }
  if (compiled.eager > 0) {
    parts.push(`${count(compiled.eager)} ran eager`);
  }
  if (compiled.pending > 0) {
    parts.push(`${count(compiled.pending)} not called yet`);
  }
  if (compiled.recompiles > 0) {
    parts.push(plural(compiled.recompiles, 'recompile'));
  }
  return `${settings.join(', ')}: ${parts.join(', ')}`;
}

/** What a reader can do where the kernel's side is not there; empty where it is. */
export function obstacle(state: LinkState | null, version: string): string {
  switch (state) {
    case null:
      return 'No notebook or console with a kernel is open.';
    case 'connecting':
      return 'Waiting for the kernel …';
    case 'absent':
      return 'nbcompile is not loaded in this kernel. Run in a cell: %load_ext nbcompile';
    case 'other':
      return `This kernel has nbcompile ${version || 'of another version'}, which this extension cannot talk to. Install the same version for both, restart the kernel and reload the page.`;
    case 'none':
      return 'This kernel has died or runs no Python.';
    case 'open':
      return '';
  }
}

function doneOf(work: IWork, model: ICompiled | null): string {
  return model !== null && work.unit !== 'rounds' ? regions(model) : counted(work);
}

function counted(work: IWork): string {
  if (work.done === null) {
    return '';
  }
  const unit = work.unit || 'parts';
  if (work.expected === null) {
    return `${count(work.done)} ${unit}`;
  }
  return `${count(work.done)} of ${work.atLeast ? 'at least ' : ''}${count(work.expected)} ${unit}`;
}

function regions(model: ICompiled): string {
  const all = model.compiled + model.eager + model.pending;
  const eager = model.eager > 0 ? ` (${count(model.eager)} eager)` : '';
  return `${count(model.compiled)} of ${plural(all, 'region')}${eager}`;
}

function recompiles(model: ICompiled | null): string {
  return model === null ? '' : plural(model.recompiles, 'recompile');
}

function joined(parts: (string | undefined)[]): string {
  return parts.filter(part => part).join(SEPARATOR);
}
