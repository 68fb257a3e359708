/**
 * Which model and which step a command means: from what the kernel has and what the cell uses, without a page.
 */
import { usedIn } from './cells';
import type { IFound, IFoundModel } from './names';

/** What a command needs to know; `step` is null where it takes none. */
export interface INeed {
  step: 'needed' | 'used' | null;
  /** A model that has been compiled is meant rather than others. */
  compiled: boolean;
}

export interface IChoice {
  model: string;
  step: string;
  /** The names to choose from, the likeliest first. */
  models: string[];
  steps: string[];
  /** Whether nothing has to be asked. */
  certain: boolean;
}

/** Choose, as far as it can be told. `source` is the text of the cell that the command is about. */
export function choose(found: IFound, source: string, need: INeed): IChoice {
  const likely = narrowed(found.models, need);
  const rest = found.models.filter(model => !likely.includes(model));
  const models = [...likely, ...rest].map(({ name }) => name);
  const model = models[0] ?? '';
  let certain = likely.length === 1;
  let steps: string[] = [];
  let step = '';
  if (need.step !== null) {
    const running = found.steps.filter(candidate => candidate.models.includes(model)).map(({ name }) => name);
    const others = found.steps.map(({ name }) => name).filter(name => !running.includes(name));
    steps = [...running, ...others];
    const named = usedIn(source, running);
    if (running.length === 1) {
      step = running[0] ?? '';
    } else if (named.length === 1) {
      step = named[0] ?? '';
    } else if (running.includes('step')) {
      step = 'step';
    }
    certain &&= step !== '' || (need.step === 'used' && running.length === 0);
  }
  return { model, step, models, steps, certain };
}

function narrowed(models: readonly IFoundModel[], need: INeed): readonly IFoundModel[] {
  let left = models;
  if (left.some(({ used }) => used)) {
    left = left.filter(({ used }) => used);
  }
  if (need.compiled && left.some(({ compiled }) => compiled)) {
    left = left.filter(({ compiled }) => compiled);
  }
  return left;
}
