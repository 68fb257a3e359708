/**
 * What a report says in words, as nbcompile/render/tables.py says it: its head, its warnings, its notes.
 */
import { recompiledAlone, stragglers } from './ranks';
import { PHASE_TITLES, type IRank, type IReport, type ISnapshot } from './report';
import { amount, brief, clean, clock, count, middle, seconds, shortCount, type Plain } from './units';

/** How much of a module's path is shown. */
export const PATH = 48;

const MOST_WARNINGS = 20;
const MOST_NOTES = 100;
const MOST_DETAILS = 4000;

/** Something that did not go as asked, and the compiler's own message about it if there is one. */
export interface INotice {
  text: string;
  details: string;
}

/** What was compiled, in one line: class, parameters, dtype, device and torch's version. */
export function head({ model, environment }: IReport): string {
  const parameters = amount(model.get('parameters'));
  const torch = torchOf(environment);
  return [
    clean(model.get('class_name') || 'model', 80),
    parameters === null ? '' : `${shortCount(parameters)} parameters`,
    text(model, 'dtype'),
    text(model, 'device') || text(environment, 'device'),
    torch ? `torch ${torch}` : ''
  ]
    .filter(part => part)
    .join(' · ');
}

/** Where unfinished work stands; what is not known is left out. */
export function progressLine(snapshot: ISnapshot): string {
  const { done, expected, elapsedSeconds, lastSeconds, remainingSeconds: left } = snapshot;
  let region = middle(snapshot.region, PATH);
  if (region && snapshot.className) {
    region = `${region} (${clean(snapshot.className, 40)})`;
  }
  const phase = PHASE_TITLES.get(snapshot.phase) ?? clean(snapshot.phase, 40);
  const parts = [clean(snapshot.stage, 120), [region, phase].filter(part => part).join(', ')];
  if (elapsedSeconds !== null) {
    parts.push(`${clock(elapsedSeconds)}${lastSeconds === null ? '' : ` (last time ${clock(lastSeconds)})`}`);
  }
  if (done !== null) {
    const every = expected === null ? '' : ` of ${snapshot.atLeast ? 'at least ' : ''}${count(expected)}`;
    const unit = clean(snapshot.unit, 20);
    const one = (expected ?? done) === 1;
    parts.push(`${count(done)}${every} ${one ? unit.replace(/s$/, '') : unit} done`);
  }
  if (left !== null) {
    parts.push(`about ${left >= 60 ? clock(left) : `${Math.max(1, Math.round(left))} s`} left`);
  }
  return parts.filter(part => part).join(' · ');
}

/** The settings as `name=value`; empty if the report has none. */
export function settingsLine(report: IReport): string {
  return pairs(report.settings);
}

/** What else is known about the machine and the versions. */
export function environmentLine({ model, environment }: IReport): string {
  const shown = new Set(['torch', 'torch_version']);
  if (!text(model, 'device')) {
    shown.add('device');
  }
  return pairs(new Map([...environment].filter(([key]) => !shown.has(key))));
}

/** What ran eager although it was to be compiled, and what failed: the first thing a reader must see. */
export function warnings(report: IReport): INotice[] {
  const found: INotice[] = [];
  for (const group of report.groups) {
    const where = middle(group.path, PATH) || 'the model';
    if (group.eager !== null && group.eager > 0) {
      const reason = clean(group.eagerReason || group.failure) || 'the report does not say why';
      const blocks = `${count(group.eager)} of ${count(group.instances)} blocks of ${where}`;
      const uncalled = reason.startsWith('not called yet') && group.compiled === 0;
      found.push(notice(`${blocks} ${uncalled ? 'have not run compiled' : 'ran eager'}: ${reason}`, group.failure));
    } else if (group.failure) {
      found.push(notice(`${where} failed to compile: ${clean(group.failure)}`, group.failure));
    }
  }
  for (const [name, strategy] of report.strategies) {
    if (strategy.failure) {
      found.push(notice(`${clean(name, 40)} failed: ${clean(strategy.failure)}`, strategy.failure));
    }
    if (strategy.firstDrift) {
      const drifting = strategy.checks.filter(check => check.drifts).length;
      found.push(
        notice(
          `${clean(name, 40)}: ${middle(strategy.firstDrift, PATH)} is the first region that differs from eager on ` +
            `the same input; ${count(drifting)} of ${count(strategy.checks.length)} do`
        )
      );
    }
  }
  for (const straggler of stragglers(report)) {
    const took = seconds(straggler.compileSeconds);
    found.push(notice(`${rankName(straggler)} compiled for ${took}, clearly longer than the others: they waited`));
  }
  for (const [rank, again] of recompiledAlone(report)) {
    const why = `${middle(again.block, PATH)}: ${clean(again.reason)}`;
    found.push(notice(`${rankName(rank)} compiled again while others did not, and they waited (${why})`));
  }
  for (const trial of report.tuning) {
    if (trial.outcome === 'failed' || trial.outcome === 'wrong') {
      const said = trial.outcome === 'failed' ? 'failed' : 'is never recommended';
      found.push(notice(`${clean(trial.name, 80)} ${said}: ${clean(trial.reason)}`, trial.reason));
    }
  }
  if (found.length > MOST_WARNINGS) {
    const more = found.length - MOST_WARNINGS;
    return [...found.slice(0, MOST_WARNINGS), notice(`and ${more} more like these`)];
  }
  return found;
}

function rankName({ rank, host }: IRank): string {
  return `rank ${count(rank)}${host ? ` on ${clean(host, 40)}` : ''}`;
}

/** What a reader must know about the figures. */
export function notes(report: IReport): string[] {
  const found = report.notes.map(note => clean(note));
  for (const [name, strategy] of report.strategies) {
    found.push(...strategy.notes.map(note => `${clean(name, 40)}: ${clean(note)}`));
  }
  for (const trial of report.tuning) {
    found.push(...trial.figures.notes.map(note => `${clean(trial.name, 80)}: ${clean(note)}`));
  }
  const different = [...new Set(found)].filter(note => note);
  return different.length <= MOST_NOTES
    ? different
    : [...different.slice(0, MOST_NOTES), `… and ${different.length - MOST_NOTES} more`];
}

/** `details` only where they say more than the text does. */
function notice(text: string, details = ''): INotice {
  if (clean(details).length >= details.length && !details.trim().includes('\n')) {
    return { text, details: '' };
  }
  const lines = details.slice(0, MOST_DETAILS).split('\n');
  const cut = details.length > MOST_DETAILS ? '…' : '';
  return { text, details: `${lines.map(line => clean(line, 1000)).join('\n')}${cut}` };
}

/** `name=value` of anything, one level of nesting laid flat. */
function pairs(values: ReadonlyMap<string, Plain>): string {
  const flat = new Map<string, Plain>();
  for (const [key, value] of [...values].slice(0, 40)) {
    if (value instanceof Map && value.size > 0) {
      for (const [inner, item] of [...value].slice(0, 20)) {
        flat.set(`${clean(key, 40)}.${clean(inner, 40)}`, item);
      }
    } else {
      flat.set(clean(key, 40), value);
    }
  }
  const shown = [...flat].filter(([, value]) => value !== null && value !== '');
  return clean(shown.map(([key, value]) => `${key}=${brief(value, 80)}`).join(', '), 600);
}

function text(values: ReadonlyMap<string, Plain>, key: string): string {
  const value = values.get(key);
  return value === undefined || value === null || value === '' ? '' : clean(value, 60);
}

function torchOf(environment: ReadonlyMap<string, Plain>): string {
  const versions = environment.get('versions');
  const nested = versions instanceof Map ? text(versions, 'torch') : '';
  return text(environment, 'torch') || text(environment, 'torch_version') || nested;
}
