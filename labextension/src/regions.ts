/**
 * The regions of a report as rows that can be sorted: its groups of repeated blocks, then the rest of the model.
 */
import type { Figure, IReport } from './report';
import { ABSENT, clean, count, middle, seconds } from './units';
import { PATH } from './words';

/** A part of a model, a group of blocks or one of the rest, with what is known about it. */
export interface IRegion {
  path: string;
  className: string;
  instances: Figure;
  compiled: Figure;
  eager: Figure;
  graphs: Figure;
  compileSeconds: Figure;
  recompiles: number;
  graphBreaks: number;
  about: string;
}

/** By which column rows are sorted, and which way; null as the report has them. */
export type Order = { column: number; descending: boolean } | null;

/** A column: its title, what it sorts by, and how that is shown. */
export interface IColumn {
  title: string;
  key: (region: IRegion) => string | Figure;
  shown: (region: IRegion) => string;
  figure: boolean;
}

function figures(title: string, key: (region: IRegion) => Figure, shown = count): IColumn {
  return { title, key, shown: region => shown(key(region)), figure: true };
}

function texts(title: string, key: (region: IRegion) => string, shown: (text: string) => string): IColumn {
  return { title, key, shown: region => shown(key(region)), figure: false };
}

export const COLUMNS: readonly IColumn[] = [
  texts(
    'path',
    region => region.path,
    path => middle(path, PATH) || '(model)'
  ),
  texts(
    'class',
    region => region.className,
    name => clean(name, 40)
  ),
  figures('blocks', region => region.instances),
  figures('compiled', region => region.compiled),
  figures('eager', region => region.eager),
  figures('graphs', region => region.graphs),
  figures('compile time', region => region.compileSeconds, seconds),
  figures('recompiles', region => region.recompiles),
  figures('breaks', region => region.graphBreaks),
  texts(
    'about',
    region => region.about,
    about => clean(about, 160) || ABSENT
  )
];

export function regionsOf(report: IReport): IRegion[] {
  return [
    ...report.groups.map(group => ({
      path: group.path,
      className: group.className,
      instances: group.instances,
      compiled: group.compiled,
      eager: group.eager,
      graphs: group.graphs,
      compileSeconds: group.compileSeconds,
      recompiles: group.recompiles.length,
      graphBreaks: group.graphBreaks.length,
      about: group.eagerReason || group.reason
    })),
    ...report.rest.map(rest => ({
      path: rest.path,
      className: rest.className,
      instances: 1,
      compiled: Number(rest.compiled),
      eager: Number(!rest.compiled),
      graphs: rest.graphs,
      compileSeconds: rest.compiled || rest.compileSeconds ? rest.compileSeconds : null,
      recompiles: 0,
      graphBreaks: 0,
      about: rest.reason
    }))
  ];
}

// layers.2 comes before layers.10
const collator = new Intl.Collator('en', { numeric: true });

/** The same regions in another order. What is absent comes last, and equals stay as they were. */
export function sorted(regions: readonly IRegion[], order: Order): readonly IRegion[] {
  const column = order === null ? undefined : COLUMNS[order.column];
  if (order === null || column === undefined) {
    return regions;
  }
  const sign = order.descending ? -1 : 1;
  const placed = regions.map(region => ({ region, key: column.key(region) }));
  placed.sort(({ key: a }, { key: b }) => {
    if (a === null || b === null) {
      return Number(a === null) - Number(b === null);
    }
    return sign * (typeof a === 'number' && typeof b === 'number' ? a - b : collator.compare(String(a), String(b)));
  });
  return placed.map(({ region }) => region);
}

/** What a press on a column's head brings: figures the largest first, text from a to z, then the other way, then none. */
export function nextOrder(order: Order, column: number): Order {
  const first = COLUMNS[column]?.figure === true;
  if (order === null || order.column !== column) {
    return { column, descending: first };
  }
  return order.descending === first ? { column, descending: !first } : null;
}
