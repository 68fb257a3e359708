import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import { Widget } from '@lumino/widgets';

import words from '../../tests/words.json';
import { MIME_TYPE } from '../src/mime';
import { ReportView } from '../src/view';

const SAMPLE = words.reports[0]?.data as Record<string, unknown>;
const NASTY = '<img src=x onerror="alert(1)"><a href="javascript:alert(2)">click</a>';

async function show(view: ReportView, data: unknown): Promise<void> {
  const model = { data: { [MIME_TYPE]: data }, metadata: {}, trusted: false, setData: () => undefined };
  await view.renderModel(model as unknown as IRenderMime.IMimeModel);
}

async function shown(data: unknown): Promise<ReportView> {
  const view = new ReportView(MIME_TYPE);
  Widget.attach(view, document.body);
  await show(view, data);
  return view;
}

function find<E extends Element>(view: ReportView, selector: string): E {
  const found = view.node.querySelector<E>(selector);
  assert.ok(found, selector);
  return found;
}

function live(done: number, more: object = {}): object {
  return { ...SAMPLE, ...more, progress: { stage: 'first call', done, expected: 9, unit: 'graphs' } };
}

test('a report is drawn: head, advice, warnings, tables, charts', async () => {
  // GIVEN a report WHEN it is drawn THEN all its parts are there
  const view = await shown(SAMPLE);
  const text = view.node.textContent ?? '';
  assert.ok(text.includes('SampleForCausalLM · 135 M parameters · float32 · cpu · torch 9.9.9'));
  assert.ok(text.includes('From 99 calls on: regional'));
  assert.ok(text.includes('4 of 30 blocks of model.layers ran eager: recompile limit reached'));
  assert.deepEqual(
    Array.from(view.node.querySelectorAll('caption')).map(caption => caption.textContent),
    ['Strategies', 'Regions', 'Recompiles', 'Graph breaks', 'Checked region by region', 'Variants']
  );
  assert.equal(view.node.querySelectorAll('svg').length, 3);
  // AND whiskers show the spread, legends the phases
  assert.equal(view.node.querySelectorAll('[data-part="steady"] path[stroke-width="1.5"]').length, 4);
  assert.ok(find(view, '[data-part="compile"] svg').textContent?.includes('Kernel compile (C++/Triton)'));
  view.dispose();
});

test('other views are known while they are on the page', async () => {
  // GIVEN a view WHEN it comes and goes THEN who listens is told, and finds it only while it is there
  let told = 0;
  const count = (): void => {
    told += 1;
  };
  ReportView.shownChanged.connect(count);
  const view = await shown(SAMPLE);
  assert.ok(ReportView.shown.has(view));
  view.dispose();
  assert.ok(!ReportView.shown.has(view));
  assert.equal(told, 2);
  ReportView.shownChanged.disconnect(count);
});

test('a live report changes in place', async () => {
  // GIVEN a report of unfinished work, sorted by a reader who has opened the notes and has the focus in the table
  const view = await shown(live(1));
  const button = find<HTMLButtonElement>(view, '[data-sort="6"]');
  button.click();
  button.focus();
  const notes = find<HTMLDetailsElement>(view, '[data-part="notes"]');
  notes.open = true;
  const elements = Array.from(view.node.querySelectorAll('*'));
  let changes = 0;
  const observer = new MutationObserver(records => {
    changes += records.filter(record => record.type === 'childList').length;
  });
  observer.observe(view.node, { childList: true, subtree: true });
  // WHEN the next state comes
  await show(view, live(2));
  // THEN the line is another, and no element has come or gone
  assert.ok(find(view, '.nbcompile-progress').textContent?.includes('2 of 9 graphs done'));
  assert.equal(find<HTMLProgressElement>(view, 'progress').getAttribute('value'), '2');
  assert.deepEqual(Array.from(view.node.querySelectorAll('*')), elements);
  await Promise.resolve();
  assert.equal(changes, 0);
  // WHEN the work has ended THEN the line has gone, the advice has come, and what the reader did is still there
  await show(view, SAMPLE);
  observer.disconnect();
  assert.equal(view.node.querySelector('.nbcompile-progress'), null);
  assert.ok(find(view, '.nbcompile-advice'));
  assert.equal(button.closest('th')?.getAttribute('aria-sort'), 'descending');
  assert.equal(document.activeElement, button);
  assert.ok(notes.open && notes.isConnected);
  view.dispose();
});

test('a part that comes or goes leaves the others as they are', async () => {
  // GIVEN a report with recompiles WHEN the next has none THEN the tables behind are the same elements
  const view = await shown(SAMPLE);
  const checks = find(view, '[data-part="checks"]');
  const groups = (SAMPLE['groups'] as object[]).map(group => ({ ...group, recompiles: [] }));
  await show(view, { ...SAMPLE, groups });
  assert.equal(view.node.querySelector('[data-part="recompiles"]'), null);
  assert.equal(find(view, '[data-part="checks"]'), checks);
  // WHEN they are back THEN so are the elements behind
  await show(view, SAMPLE);
  assert.ok(find(view, '[data-part="recompiles"]'));
  assert.equal(find(view, '[data-part="checks"]'), checks);
  view.dispose();
});

test('what cannot be read is told, and a report after it is drawn', async () => {
  // GIVEN a view of a report WHEN something broken comes THEN a message stands there, and no old figures do
  const view = await shown(SAMPLE);
  await show(view, '{"schema": ');
  assert.match(view.node.textContent ?? '', /not valid JSON/);
  assert.equal(view.report, null);
  assert.equal(view.node.querySelector('table'), null);
  // WHEN a report comes again THEN it is drawn
  await show(view, SAMPLE);
  assert.ok(view.report);
  assert.equal(view.node.querySelector('.nbcompile-problem'), null);
  view.dispose();
});

test('hostile text is text', async () => {
  // GIVEN a report in which every text, and every name of free-form data, is markup
  const hostile = JSON.parse(JSON.stringify(SAMPLE), (_, value: unknown) =>
    typeof value === 'string' ? NASTY : value
  ) as Record<string, unknown>;
  const view = await shown({ ...hostile, model: { [NASTY]: NASTY }, environment: { [NASTY]: { [NASTY]: NASTY } } });
  // THEN it is shown as letters, and nothing is a link, a picture or a script
  assert.ok(view.node.textContent?.includes('<img src=x'));
  assert.equal(view.node.querySelectorAll('a, img, script, iframe, style, link, object, embed').length, 0);
  const names = Array.from(view.node.querySelectorAll('*')).flatMap(element => element.getAttributeNames());
  assert.deepEqual(
    names.filter(name => /^on|^href$|^src$|^style$|^xlink/.test(name)),
    []
  );
  view.dispose();
});

test('ten thousand regions are drawn in part, and the rest on demand', async () => {
  // GIVEN 10 000 groups
  const groups = Array.from({ length: 10_000 }, (_, index) => ({
    path: `stage${index}`,
    class_name: 'Block',
    instances: 2,
    compiled: 2,
    compile_seconds: index + 1,
    phases: { dynamo: index + 1 }
  }));
  // WHEN they are drawn THEN two hundred rows are there
  const view = await shown({ schema: 1, groups });
  const rows = (): number => view.node.querySelectorAll('.nbcompile-regions tbody tr').length;
  assert.equal(rows(), 200);
  // WHEN more are asked for THEN a thousand more are
  find<HTMLButtonElement>(view, '[data-more]').click();
  assert.equal(rows(), 1200);
  assert.ok(view.node.textContent?.includes('1200 of 10000 regions'));
  view.dispose();
});

test('a hundred equal regions are one bar', async () => {
  // GIVEN a strategy of a hundred blocks of one class, and a head
  const regions = Array.from({ length: 100 }, (_, index) => ({
    path: `layers.${index}`,
    class_name: 'Block',
    seconds: 0.5,
    phases: { inductor: 0.5 },
    graphs: 1
  }));
  regions.push({ path: 'head', class_name: 'Head', seconds: 1, phases: { inductor: 1 }, graphs: 1 });
  // WHEN it is drawn
  const view = await shown({ schema: 1, strategies: { regional: { cold_seconds: 51, regions } } });
  // THEN the bars are two, and the larger tells of how many it is made
  const bars = Array.from(view.node.querySelectorAll('[data-part="compile"] g[data-about]'));
  assert.equal(bars.length, 2);
  const said = bars[0]?.getAttribute('aria-label') ?? '';
  assert.match(
    said,
    /layers\.0 … 99 \(100 × Block\) · 50\.0 s in all, 100 graphs · Inductor \(lowering\): 50\.0 s, 100 %/
  );
  // WHEN it has the focus THEN its figures stand below the chart
  (bars[0] as SVGElement).focus();
  assert.equal(find(view, '[data-part="compile"] .nbcompile-readout').textContent, said);
  view.dispose();
});
