/**
 * The runs that a notebook holds, read from the reports in its outputs: no kernel is asked.
 */
import { isCodeCellModel } from '@jupyterlab/cells';
import type { NotebookPanel } from '@jupyterlab/notebook';

import { MIME_TYPE } from './mime';
import { readReport } from './read';
import type { IReport } from './report';
import { ABSENT, clean, seconds } from './units';

/** One strategy's figures, as they are shown. */
export interface IFigures {
  name: string;
  cold: string;
  steady: string;
}

/** One output with a report. */
export interface IRun {
  /** The cell's place in the notebook. */
  cell: number;
  /** What stands before the cell, as in `[3]`. */
  prompt: string;
  what: string;
  model: string;
  figures: IFigures[];
}

const MOST_RUNS = 100;
const RUNNING = 'running:';

/** Reads a notebook's runs; an output that has not changed is not read again. */
export class History {
  /** The runs, in the order of the cells. */
  runs(panel: NotebookPanel | null): IRun[] {
    const cells = panel?.content.model?.cells;
    const found: IRun[] = [];
    for (let index = 0; cells && index < cells.length && found.length < MOST_RUNS; index++) {
      const cell = cells.get(index);
      if (!isCodeCellModel(cell)) {
        continue;
      }
      for (let place = 0; place < cell.outputs.length; place++) {
        const data: unknown = cell.outputs.get(place).data[MIME_TYPE];
        const read = this.read(data);
        if (read !== null) {
          const prompt = read.what === RUNNING ? '*' : (cell.executionCount ?? ' ');
          found.push({ ...read, cell: index, prompt: `[${prompt}]` });
        }
      }
    }
    return found;
  }

  private read(data: unknown): Omit<IRun, 'cell' | 'prompt'> | null {
    if (typeof data !== 'object' || data === null) {
      return null;
    }
    let run = this.known.get(data);
    if (run === undefined) {
      const { report } = readReport(data);
      run = report === undefined ? null : runOf(report);
      this.known.set(data, run);
    }
    return run;
  }

  private readonly known = new WeakMap<object, Omit<IRun, 'cell' | 'prompt'> | null>();
}

/** What a report says of the run that it is of. */
export function runOf(report: IReport): Omit<IRun, 'cell' | 'prompt'> {
  const names = [...report.strategies.keys()];
  return {
    what: report.progress !== null ? RUNNING : whatOf(report, names),
    model: clean(report.model.get('class_name') ?? ''),
    figures: names.map(name => {
      const figures = report.strategies.get(name);
      const failed = figures?.failure ? 'failed' : '';
      return {
        name: clean(name),
        cold: failed || shown(figures?.coldSeconds),
        steady: shown(figures?.steadySeconds)
      };
    })
  };
}

function whatOf(report: IReport, names: string[]): string {
  if (report.tuning.length > 0) {
    return 'tuned';
  }
  return names.length > 1 ? 'compared' : 'compiled';
}

function shown(value: number | null | undefined): string {
  return value === null || value === undefined ? ABSENT : seconds(value);
}
