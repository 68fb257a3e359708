/**
 * A report as typed data: the fields of nbcompile/report.py. Times are in seconds, sizes in bytes; a figure that was not
 * measured is null, never zero. `readReport` in read.ts makes one of what a file or an output holds.
 */
import type { Plain } from './units';

export const SCHEMA = 1;

/** The phases of a compile in the order in which they happen. */
export const PHASES = ['dynamo', 'aot_autograd', 'inductor', 'codegen', 'kernels', 'backward', 'other'] as const;

export const PHASE_TITLES: ReadonlyMap<string, string> = new Map([
  ['dynamo', 'Dynamo (tracing, guards)'],
  ['aot_autograd', 'AOT autograd'],
  ['inductor', 'Inductor (lowering)'],
  ['codegen', 'Code generation'],
  ['kernels', 'Kernel compile (C++/Triton)'],
  ['backward', 'Backward'],
  ['other', 'Other']
]);

export type Figure = number | null;

export interface IVariant {
  name: string;
  instances: Figure;
  graphs: Figure;
  compileSeconds: Figure;
  dynamic: string[];
}

export interface IRecompile {
  block: string;
  reason: string;
  guard: string;
  seconds: Figure;
  old: string;
  new: string;
  remedy: string;
  caller: string;
}

/** One of several processes that train a model together. */
export interface IRank {
  rank: Figure;
  host: string;
  instances: Figure;
  compiled: Figure;
  eager: Figure;
  graphs: Figure;
  compileSeconds: Figure;
  backwardSeconds: Figure;
  recompiles: IRecompile[];
}

export interface IGraphBreak {
  block: string;
  reason: string;
  location: string;
  remedy: string;
}

/** What compiling one region took, with its split over the phases. */
export interface IRegionTime {
  path: string;
  className: string;
  seconds: Figure;
  phases: Map<string, number>;
  graphs: Figure;
}

export interface IGroup {
  path: string;
  className: string;
  instances: Figure;
  compiled: Figure;
  eager: Figure;
  variants: IVariant[];
  compileSeconds: Figure;
  recompiles: IRecompile[];
  graphBreaks: IGraphBreak[];
  phases: Map<string, number>;
  reason: string;
  graphs: Figure;
  eagerReason: string;
  failure: string;
}

export interface IRest {
  path: string;
  className: string;
  decision: string;
  reason: string;
  compiled: boolean;
  compileSeconds: Figure;
  phases: Map<string, number>;
  graphs: Figure;
}

export interface ICheck {
  block: string;
  className: string;
  maxAbsDiff: Figure;
  maxAbsGradDiff: Figure;
  largest: Figure;
  drifts: boolean;
  note: string;
}

/** A strategy's figures; those that were not measured are null. */
export interface IStrategy {
  coldSeconds: Figure;
  coldRepeats: Figure;
  steadySeconds: Figure;
  steadySpread: Figure;
  steadyRepeats: Figure;
  peakBytes: Figure;
  maxAbsDiff: Figure;
  breakEvenCalls: Figure;
  graphs: Figure;
  regions: IRegionTime[];
  checks: ICheck[];
  firstDrift: string;
  failure: string;
  notes: string[];
  steadyRatio: Figure;
  steadyRatioLow: Figure;
  steadyRatioHigh: Figure;
  dispatchSeconds: Figure;
  dispatchCalls: Figure;
}

/** One setting of a tuning; `name` is its strategy and what differs from the defaults. */
export interface ITrial {
  strategy: string;
  name: string;
  figures: IStrategy;
  outcome: string;
  reason: string;
}

/** Where work stands that is not finished. */
export interface ISnapshot {
  stage: string;
  region: string;
  className: string;
  phase: string;
  elapsedSeconds: Figure;
  lastSeconds: Figure;
  remainingSeconds: Figure;
  done: Figure;
  expected: Figure;
  atLeast: boolean;
  unit: string;
}

export interface IReport {
  created: string;
  environment: Map<string, Plain>;
  model: Map<string, Plain>;
  settings: Map<string, Plain>;
  groups: IGroup[];
  rest: IRest[];
  strategies: Map<string, IStrategy>;
  tuning: ITrial[];
  ranks: IRank[];
  notes: string[];
  progress: ISnapshot | null;
  /** What is not shown as there is too much of it. */
  leftOut: string[];
  /** What is not as a report's has to be, and is taken as absent. */
  unread: string[];
}
