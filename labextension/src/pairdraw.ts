/**
 * Two reports side by side as a tree of elements; all that reports hold is set as text.
 */
import { html, type Child } from './dom';
import { COUNTS, LEFT, RIGHT, type IFigurePair, type IPair, type IRegionPair, type ITimePair } from './pair';
import { count } from './units';

/** One report: where it is from, what it is of, when it was made. */
export interface ISide {
  label: string;
  head: string;
  created: string;
}

/** The tables that can be long, and how many rows of each are shown. */
export type PairRows = Readonly<Record<'strategies' | 'times' | 'regions', number>>;

export const FIRST_PAIR_ROWS: PairRows = { strategies: 30, times: 20, regions: 100 };
export const MORE_PAIR_ROWS = 500;

/** A button's keys are its own, and not the notebook's. */
const OWN_KEYS = { type: 'button', 'data-lm-suppress-shortcuts': 'true' };

export function drawPair(sides: readonly [ISide, ISide], pair: IPair, rows: PairRows): HTMLElement {
  const { cautions, facts, strategies, times, regions } = pair;
  const parts: Child[] = [
    html(
      'div',
      { class: 'nbcompile-pair-title', 'data-part': 'title' },
      html('strong', {}, 'Two reports side by side'),
      html('button', { ...OWN_KEYS, class: 'jp-mod-styled jp-mod-minimal', 'data-do': 'close' }, 'Close')
    ),
    html('dl', { class: 'nbcompile-pair-sides', 'data-part': 'sides' }, ...sides.flatMap(drawSide)),
    cautions.length > 0
      ? html(
          'div',
          { class: 'nbcompile-warnings', role: 'group', 'aria-label': 'Before any figure', 'data-part': 'cautions' },
          html('ul', {}, ...cautions.map(caution => html('li', {}, caution)))
        )
      : html('p', { class: 'nbcompile-faint', 'data-part': 'same' }, 'Same machine, model, versions and settings.'),
    drawTable(
      'facts',
      'What is not the same',
      ['', 'name', LEFT, RIGHT],
      facts.map(({ about, name, left, right }) => html('tr', {}, ...texts([about, name, left, right])))
    ),
    drawTable(
      'strategies',
      'Strategies',
      ['strategy', 'figure', ...PAIR_HEADERS],
      strategies.slice(0, rows.strategies).flatMap(({ name, only, figures }) =>
        figures.map((figure, index) => {
          const about = [name, only ? html('div', { class: 'nbcompile-only' }, only) : null];
          const first =
            index === 0 ? html('th', { scope: 'rowgroup', rowspan: Math.max(1, figures.length) }, ...about) : null;
          return html('tr', {}, first, html('th', { scope: 'row' }, figure.name), ...drawFigure(figure));
        })
      ),
      moreOf('strategies', strategies.length, rows.strategies)
    ),
    drawTable(
      'times',
      'Compile time by strategy and region, the largest difference first',
      ['strategy', 'region', 'class', ...PAIR_HEADERS],
      times.first(rows.times).map(time => html('tr', {}, ...texts([time.strategy]), ...drawPlace(time))),
      moreOf('times', times.length, rows.times)
    ),
    drawTable(
      'regions',
      'Regions, the largest difference of compile time first',
      ['path', 'class', ...PAIR_HEADERS, ...COUNTS],
      regions.first(rows.regions).map(region => html('tr', {}, ...drawPlace(region), ...drawCounts(region))),
      moreOf('regions', regions.length, rows.regions)
    )
  ];
  if (strategies.length === 0 && regions.length === 0) {
    parts.push(html('p', { 'data-part': 'nothing' }, 'Neither report holds any figure.'));
  }
  return html('div', {}, ...parts);
}

/** The headings over a figure of both; the last two are the differences. */
const PAIR_HEADERS = [LEFT, RIGHT, `${RIGHT} / ${LEFT}`, `${RIGHT} − ${LEFT}`];
const RIGHT_ALIGNED = new Set<string>([...PAIR_HEADERS.slice(0, 3), ...COUNTS]);

function drawSide({ label, head, created }: ISide, index: number): HTMLElement[] {
  const said = [label, head, created ? `made ${created}` : ''].filter(part => part);
  return [html('dt', {}, index === 0 ? LEFT : RIGHT), html('dd', {}, said.join(' · '))];
}

function drawPlace({ path, className, time, only }: ITimePair): HTMLElement[] {
  return [html('th', { scope: 'row' }, path), html('td', {}, className), ...drawFigure(time, only)];
}

function drawFigure({ left, right, ratio, change, verdict }: IFigurePair, only = ''): HTMLElement[] {
  const number = { class: 'nbcompile-number' };
  const kind = verdict || (change === 'equal' ? 'equal' : '');
  const mark = verdict === 'better' ? '▲ ' : verdict === 'worse' ? '▼ ' : '';
  return [
    html('td', number, left),
    html('td', number, right),
    html('td', number, ratio),
    html(
      'td',
      { class: `nbcompile-change${kind ? ` nbcompile-${kind}` : ''}` },
      mark ? html('span', { 'aria-hidden': 'true' }, mark) : null,
      only || change
    )
  ];
}

function drawCounts({ counts }: IRegionPair): HTMLElement[] {
  return counts.map(text => html('td', { class: 'nbcompile-number' }, text));
}

function texts(cells: readonly string[]): HTMLElement[] {
  return cells.map((cell, column) => html(column === 0 ? 'th' : 'td', { scope: column === 0 ? 'row' : null }, cell));
}

function drawTable(
  part: string,
  title: string,
  headers: readonly string[],
  rows: readonly HTMLElement[],
  more: HTMLElement | null = null
): HTMLElement | null {
  if (rows.length === 0) {
    return null;
  }
  const heads = headers.map(name =>
    html('th', { scope: 'col', class: RIGHT_ALIGNED.has(name) && part !== 'facts' ? 'nbcompile-number' : null }, name)
  );
  return html(
    'div',
    { class: 'nbcompile-wide', 'data-part': part },
    html(
      'table',
      { class: 'nbcompile-table' },
      html('caption', {}, title),
      html('thead', {}, html('tr', {}, ...heads)),
      html('tbody', {}, ...rows)
    ),
    more
  );
}

function moreOf(part: keyof PairRows, all: number, shown: number): HTMLElement | null {
  if (all <= shown) {
    return null;
  }
  const next = count(Math.min(all - shown, MORE_PAIR_ROWS));
  return html(
    'p',
    { class: 'nbcompile-faint' },
    `${count(shown)} of ${count(all)}. `,
    html('button', { ...OWN_KEYS, class: 'jp-mod-styled', 'data-do': 'more', 'data-of': part }, `Show ${next} more`)
  );
}
