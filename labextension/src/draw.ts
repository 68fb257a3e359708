/**
 * A report as a tree of elements. Nothing here keeps anything: what the reader chose is handed in, and the tree that is
 * on the page is made equal to this one.
 */
import { recommendation } from './advice';
import { compileCharts, steadyCharts, type IChart } from './charts';
import { html, type Child } from './dom';
import { COLUMNS, sorted, type IRegion, type Order } from './regions';
import type { IReport, ISnapshot } from './report';
import {
  checksTable,
  graphBreaksTable,
  ranksTable,
  recompilesTable,
  strategiesTable,
  tuningTable,
  variantsTable,
  type ITable
} from './tables';
import { clean, count } from './units';
import { environmentLine, head, notes, progressLine, settingsLine, warnings, type INotice } from './words';

/** Rows of the regions' table at first, and with each press on the button below it. */
export const FIRST_ROWS = 200;
export const MORE_ROWS = 1000;

/** Columns of sentences: squeezed to a word a line they would make a row as tall as a page. */
const PROSE: ReadonlySet<string> = new Set(['reason', 'what to do', 'verdict', 'failure']);

/** What the reader chose. */
export interface IChoice {
  order: Order;
  rows: number;
}

/** Text of a button that is pressed inside a notebook: without this its keys would be the notebook's. */
const OWN_KEYS = { 'data-lm-suppress-shortcuts': 'true' };

/** The whole report. `regions` are those of the report, read once however often they are sorted. */
export function drawReport(report: IReport, regions: readonly IRegion[], choice: IChoice): HTMLElement {
  const { progress } = report;
  const table = report.tuning.length > 0 ? tuningTable(report) : strategiesTable(report);
  const charts = [...steadyCharts(report), ...compileCharts(report)];
  const said = recommendation(report);
  const parts: Child[] = [
    html('p', { class: 'nbcompile-head', 'data-part': 'head' }, head(report)),
    progress === null ? null : drawProgress(progress),
    said && progress === null ? html('p', { class: 'nbcompile-advice', 'data-part': 'advice' }, said) : null,
    ...drawNotices('Warnings', warnings(report)),
    ...drawNotices('Not shown, as there is too much of it', report.leftOut.map(plainly)),
    ...drawNotices('Not as it has to be in a report, and taken as absent', report.unread.map(plainly)),
    drawTable('strategies', table),
    ...charts.map(drawChart),
    drawTable('ranks', ranksTable(report)),
    regions.length > 0 ? drawRegions(regions, choice) : null,
    drawTable('recompiles', recompilesTable(report)),
    drawTable('breaks', graphBreaksTable(report)),
    drawTable('checks', checksTable(report)),
    drawTable('variants', variantsTable(report))
  ];
  if (progress === null && table.rows.length === 0 && regions.length === 0) {
    parts.push(html('p', { 'data-part': 'nothing' }, 'Nothing has been compiled or measured yet.'));
  }
  parts.push(...drawNotes(report));
  return html('div', {}, ...parts);
}

/** What is shown in place of a report that cannot be read. */
export function drawProblem(problem: string): HTMLElement {
  return html('div', {}, html('p', { class: 'nbcompile-problem', role: 'alert', 'data-part': 'problem' }, problem));
}

function plainly(text: string): INotice {
  return { text: clean(text), details: '' };
}

function drawProgress(progress: ISnapshot): HTMLElement {
  const { done, expected } = progress;
  const known = done !== null && expected !== null && expected > 0;
  return html(
    'div',
    { class: 'nbcompile-progress', 'data-part': 'progress' },
    html('span', {}, progressLine(progress)),
    known ? html('progress', { max: expected, value: Math.min(done, expected), 'aria-label': 'done' }) : null
  );
}

function drawNotices(title: string, notices: readonly INotice[]): HTMLElement[] {
  if (notices.length === 0) {
    return [];
  }
  const items = notices.map(({ text, details }) =>
    html(
      'li',
      {},
      clean(text, 600),
      details
        ? html('details', {}, html('summary', OWN_KEYS, "the compiler's message"), html('pre', {}, details))
        : null
    )
  );
  const told = title === 'Warnings' ? null : html('p', {}, `${title}:`);
  const part = { class: 'nbcompile-warnings', role: 'group', 'aria-label': title, 'data-part': title };
  return [html('div', part, told, html('ul', {}, ...items))];
}

function drawTable(part: string, table: ITable): HTMLElement | null {
  if (table.rows.length === 0) {
    return null;
  }
  const kind = (column: number): string | null =>
    table.align[column] === 'r'
      ? 'nbcompile-number'
      : PROSE.has(table.headers[column] ?? '')
        ? 'nbcompile-reason'
        : null;
  const headers = table.headers.map((name, column) => html('th', { scope: 'col', class: kind(column) }, name));
  const rows = table.rows.map((row, index) => {
    const cells = row.map((cell, column) => {
      const hint = column === row.length - 1 ? table.hints[index] || null : null;
      return column === 0 ? html('th', { scope: 'row' }, cell) : html('td', { class: kind(column), title: hint }, cell);
    });
    return html('tr', {}, ...cells);
  });
  const below = [table.leftOut > 0 ? `… and ${table.leftOut} more` : '', table.footnote].filter(line => line);
  return html(
    'div',
    { class: 'nbcompile-wide', 'data-part': part },
    html(
      'table',
      { class: 'nbcompile-table' },
      html('caption', {}, table.title),
      html('thead', {}, html('tr', {}, ...headers)),
      html('tbody', {}, ...rows)
    ),
    ...below.map(line => html('p', { class: 'nbcompile-faint' }, line))
  );
}

function drawChart({ part, title, drawing }: IChart): HTMLElement {
  return html(
    'figure',
    { class: 'nbcompile-figure', 'data-part': part },
    html('figcaption', {}, title),
    drawing,
    html('p', { class: 'nbcompile-readout', 'data-kept': 'true', 'aria-hidden': 'true' })
  );
}

function drawRegions(regions: readonly IRegion[], { order, rows }: IChoice): HTMLElement {
  const headers = COLUMNS.map(({ title, figure }, column) => {
    const by = order?.column === column ? order : null;
    const arrow = by === null ? '' : by.descending ? '▼' : '▲';
    return html(
      'th',
      {
        scope: 'col',
        class: figure ? 'nbcompile-number' : null,
        'aria-sort': by === null ? 'none' : by.descending ? 'descending' : 'ascending'
      },
      html(
        'button',
        { type: 'button', class: 'nbcompile-sort', 'data-sort': column, title: `sort by ${title}`, ...OWN_KEYS },
        title,
        html('span', { 'aria-hidden': 'true' }, arrow)
      )
    );
  });
  const shown = sorted(regions, order).slice(0, rows);
  const body = shown.map(region => {
    const cells = COLUMNS.map(({ shown: text, figure }, column) => {
      if (column === 0) {
        return html('th', { scope: 'row', title: clean(region.path) || null }, text(region));
      }
      return html('td', { class: figure ? 'nbcompile-number' : null }, text(region));
    });
    return html('tr', {}, ...cells);
  });
  const left = regions.length - shown.length;
  const more =
    left > 0
      ? html(
          'p',
          { class: 'nbcompile-faint' },
          `${count(shown.length)} of ${count(regions.length)} regions. `,
          html(
            'button',
            { type: 'button', class: 'nbcompile-more jp-mod-styled', 'data-more': 'true', ...OWN_KEYS },
            `Show ${count(Math.min(left, MORE_ROWS))} more`
          )
        )
      : null;
  return html(
    'div',
    { class: 'nbcompile-wide', 'data-part': 'regions' },
    html(
      'table',
      { class: 'nbcompile-table nbcompile-regions' },
      html('caption', {}, 'Regions'),
      html('thead', {}, html('tr', {}, ...headers)),
      html('tbody', {}, ...body)
    ),
    more
  );
}

function drawNotes(report: IReport): HTMLElement[] {
  const said = notes(report);
  const lines: [string, string][] = [
    ['settings', settingsLine(report)],
    ['environment', environmentLine(report)],
    ['made', clean(report.created, 60)]
  ];
  const known = lines.filter(([, line]) => line);
  const folded = (part: string, title: string, body: HTMLElement): HTMLElement =>
    html('details', { class: 'nbcompile-more-about', 'data-part': part }, html('summary', OWN_KEYS, title), body);
  const parts: HTMLElement[] = [];
  if (said.length > 0) {
    const items = said.map(note => html('li', {}, note));
    parts.push(folded('notes', `Notes (${said.length})`, html('ul', {}, ...items)));
  }
  if (known.length > 0) {
    const pairs = known.flatMap(([name, line]) => [html('dt', {}, name), html('dd', {}, line)]);
    parts.push(folded('about', 'Settings and environment', html('dl', {}, ...pairs)));
  }
  return parts;
}
